# SPDX-License-Identifier: Apache-2.0
"""What a cluster is: its parameters, its addresses and its folders. Data only."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .binaries import DEFAULT_KUBERNETES, Binaries
from .system import TestbedError

MOST_NODES = 50
MOST_CLUSTERS = 100


def state_root() -> Path:
    """The folder under which every cluster of this machine keeps everything it has."""
    return Path(os.environ.get("TESTBED_STATE", "/var/tmp/testbed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The parameters of a cluster, as its creator gave them."""

    name: str = "main"
    nodes: int = 1
    kubernetes: str = DEFAULT_KUBERNETES
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates, given to every Kubernetes program."""
    api_server_flags: Sequence[str] = ()
    """More flags for the API server."""
    node_disk_bytes: int | None = None
    """Puts each node's /var/lib on a file system of that size, to be filled by tests."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", self.name):
            raise TestbedError(f"cluster name {self.name!r}: use 1 to 31 of a-z, 0-9 and -")
        if not 1 <= self.nodes <= MOST_NODES:
            raise TestbedError(f"nodes {self.nodes}: choose 1 to {MOST_NODES}")
        if self.node_disk_bytes is not None and self.node_disk_bytes < 64 << 20:
            raise TestbedError(f"node_disk_bytes {self.node_disk_bytes}: a node needs 64 MiB at least")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node-{number}" for number in range(1, self.nodes + 1))

    @property
    def gate_text(self) -> str:
        return ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self.gates.items()))


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of cluster number `index`: all of 10.(128+index).0.0/16, which the host routes to it.

    10.X.0.0/24 are the nodes, 10.X.64.0/18 the pods (a /24 per node), 10.X.128.0/20 the Services.
    """

    index: int

    @property
    def _net(self) -> str:
        return f"10.{128 + self.index}"

    @property
    def all(self) -> str:
        return f"{self._net}.0.0/16"

    @property
    def host(self) -> str:
        """The host's end of the link to the control plane."""
        return f"{self._net}.1.1"

    @property
    def uplink(self) -> str:
        return f"{self._net}.1.2"

    @property
    def control_plane(self) -> str:
        return f"{self._net}.0.1"

    @property
    def pods(self) -> str:
        return f"{self._net}.64.0/18"

    @property
    def services(self) -> str:
        return f"{self._net}.128.0/20"

    @property
    def kubernetes_service(self) -> str:
        return f"{self._net}.128.1"

    @property
    def link(self) -> str:
        """The name of the host's network device for this cluster."""
        return f"testbed{self.index}"

    def node(self, number: int) -> str:
        return f"{self._net}.0.{10 + number}"

    def node_pods(self, number: int) -> str:
        return f"{self._net}.{64 + number}.0/24"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders and files of one cluster."""

    root: Path

    @classmethod
    def of(cls, name: str) -> "Layout":
        return cls(state_root() / name)

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def ready(self) -> Path:
        """Exists once the cluster is up and is meant to outlive its creator."""
        return self.root / "ready"

    @property
    def owner(self) -> Path:
        """Locked by the living process that is making the cluster, or that it shall not outlive."""
        return self.root / "owner.lock"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def audit_log(self) -> Path:
        return self.control / "audit.log"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name


def store(layout: Layout, spec: Spec, addresses: Addresses, binaries: Binaries) -> None:
    """Write down what another process needs to take the cluster over."""
    found = {name: str(path) for name, path in asdict(binaries).items()}
    text = json.dumps({"spec": asdict(spec), "index": addresses.index, "binaries": found})
    scratch = layout.spec.with_suffix(".new")
    scratch.write_text(text)
    scratch.rename(layout.spec)


def load(layout: Layout) -> tuple[Spec, Addresses, Binaries]:
    """Read what `store` wrote."""
    try:
        stored = json.loads(layout.spec.read_text())
    except FileNotFoundError as error:
        raise TestbedError(f"there is no cluster in {layout.root}; `up` makes one") from error
    found = {name: Path(path) for name, path in stored["binaries"].items()}
    return Spec(**stored["spec"]), Addresses(stored["index"]), Binaries(**found)
