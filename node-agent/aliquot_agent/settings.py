# SPDX-License-Identifier: Apache-2.0
"""Settings of the agent: one frozen dataclass, filled from flags and environment, checked once."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aliquot_agent import library
from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the agent can be told."""

    node_name: str
    """Node whose GPUs are published; also the name of the pool."""
    namespace: str
    """Where the ConfigMap aliquot-node-config is looked for."""
    kubeconfig: Path | None
    """None: the pod's service account."""
    plugin_dir: Path
    """DRA socket and checkpoints; must be the same directory on the host, kubelet opens the socket."""
    registry_dir: Path
    """Where kubelet looks for registrar sockets."""
    cdi_dir: Path
    """Where our CDI specs are written."""
    base_cdi_dirs: tuple[Path, ...]
    """Where the vendor toolkit's CDI specs are looked for."""
    base_cdi_kind: str
    """CDI kind of the vendor toolkit."""
    host_root: Path
    """Where the host's file system is seen from here: device nodes are looked for below it."""
    device_plugins_dir: Path
    """Kubelet's directory of device plugins: who else hands out GPUs."""
    state_dir: Path
    """The library; the same path on the host, CDI specs name it."""
    run_dir: Path
    """Share directories, best on a tmpfs; the same path on the host, CDI specs name it."""
    library: Path
    """libaliquot.so that goes into the tenants' containers."""
    smi: str
    """nvidia-smi, or a program with its command line: makes the settings of a whole GPU."""
    mps_control: str
    """nvidia-cuda-mps-control, or a program with its commands."""
    reserve_bytes: int
    """Memory per GPU that is never handed out, where node configuration does not say."""
    shares_per_gpu: int
    """Most tenants per GPU, where node configuration does not say."""
    health_calm_s: float
    """How long a GPU must look well after a reset before it takes new claims again."""
    outside_quiet_s: float
    """How long memory that was held outside any share has to be free before it is offered again."""
    settle_s: float
    """Growth of a share waits so long after the lowered capacity is on the server."""
    context_estimate_bytes: int
    """What a CUDA context counts until it is measured: at or above what one takes on this cluster's GPUs."""
    metrics_port: int
    """Port of /metrics, /healthz and /readyz."""
    hami_metrics: bool
    """HAMi's metric names beside ours, so that its dashboards live on."""
    report_interval_s: float
    """Least time between two status writes for one claim."""
    boot_id_file: Path
    """Tells one boot of the machine from the next."""
    pod_uid: str
    """With it the sockets carry the pod's UID, so that two instances can overlap in a rolling update."""
    log_level: str
    """debug, info, warning or error."""

    @property
    def claims_dir(self) -> Path:
        """Share directories: <claimUID>/<share>."""
        return self.run_dir / "claims"

    @property
    def old_claims_dir(self) -> Path:
        """Where agents before had them; what runs since then still uses them."""
        return self.state_dir / "claims"

    @property
    def sharing_dir(self) -> Path:
        """What the keeper of sharing says of each GPU."""
        return self.plugin_dir / "sharing"

    @property
    def mps_dir(self) -> Path:
        """Directories of MPS daemons, one per GPU UUID."""
        return self.run_dir / "mps"

    @property
    def guarded_dirs(self) -> tuple[str, ...]:
        """What no pod with a share may mount, wherever an administrator has put it."""
        ours = self.state_dir, self.run_dir, self.plugin_dir, self.registry_dir, self.cdi_dir
        return tuple(str(path) for path in ours)

    @property
    def checkpoint_dir(self) -> Path:
        """One file per prepared claim."""
        return self.plugin_dir / "claims"


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Settings from flags, then ALIQUOT_<FLAG> variables, then defaults; raises InvalidInput."""
    given = _parser(environ).parse_args(argv)
    if not given.node_name:
        raise InvalidInput(field="--node-name", value="", fix="want the name of this node (or NODE_NAME)")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", given.base_cdi_kind):
        raise InvalidInput(field="--base-cdi-kind", value=given.base_cdi_kind, fix="want vendor.com/class")
    if not 1 <= given.shares <= 1000:
        raise InvalidInput(field="--shares", value=given.shares, fix="want 1 to 1000")
    return Settings(
        node_name=given.node_name,
        namespace=given.namespace,
        kubeconfig=given.kubeconfig,
        plugin_dir=given.plugin_dir,
        registry_dir=given.registry_dir,
        cdi_dir=given.cdi_dir,
        base_cdi_dirs=tuple(Path(path) for path in given.base_cdi_dirs.split(":")),
        base_cdi_kind=given.base_cdi_kind,
        host_root=given.host_root,
        device_plugins_dir=given.device_plugins_dir,
        state_dir=given.state_dir,
        run_dir=given.run_dir,
        library=given.library,
        smi=given.smi,
        mps_control=given.mps_control,
        reserve_bytes=_size(given.reserve, field="--reserve"),
        shares_per_gpu=given.shares,
        health_calm_s=given.health_calm_s,
        outside_quiet_s=given.outside_quiet_s,
        settle_s=given.settle_s,
        context_estimate_bytes=_size(given.context_estimate, field="--context-estimate"),
        metrics_port=given.metrics_port,
        hami_metrics=str(given.hami_metrics).lower() in ("1", "true", "yes"),
        report_interval_s=given.report_interval_s,
        boot_id_file=given.boot_id_file,
        pod_uid=given.pod_uid,
        log_level=given.log_level,
    )


def _size(text: str, *, field: str) -> int:
    value = quantity.parse(text, field=field)
    if value < 0:
        raise InvalidInput(field=field, value=text, fix="want a size of at least 0")
    return value


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aliquot-agent",
        description="Publishes this node's GPUs, prepares shares of them and watches them.",
        epilog="Each flag can also be given as ALIQUOT_<FLAG>, e.g. ALIQUOT_SHARES=8.",
    )

    def add(flag: str, default: object, text: str, kind: type = str) -> None:
        variable = f"ALIQUOT_{flag.strip('-').replace('-', '_').upper()}"
        value = environ.get(variable)
        shown = f"{text} (default: {default})" if default not in (None, "") else text
        parser.add_argument(flag, type=kind, default=default if value is None else value, help=shown)

    add("--node-name", environ.get("NODE_NAME", ""), "name of this node; NODE_NAME works too")
    add("--namespace", environ.get("POD_NAMESPACE", "aliquot-system"), "where aliquot-node-config is")
    add("--kubeconfig", None, "credentials; without it the pod's service account", Path)
    add("--plugin-dir", Path(names.PLUGIN_DIR), "DRA socket and checkpoints", Path)
    add("--registry-dir", Path(names.PLUGIN_REGISTRY_DIR), "kubelet's plugin registry", Path)
    add("--cdi-dir", Path(names.CDI_DIR), "where our CDI specs go", Path)
    add("--base-cdi-dirs", f"/etc/cdi:{names.CDI_DIR}", "where the vendor toolkit's CDI specs are")
    add("--base-cdi-kind", "nvidia.com/gpu", "CDI kind of the vendor toolkit")
    add("--host-root", Path("/"), "where the host's file system is seen", Path)
    add("--device-plugins-dir", Path(names.DEVICE_PLUGINS_DIR), "kubelet's device plugins", Path)
    add("--state-dir", Path(names.HOST_STATE_DIR), "the library, on the host's disk", Path)
    add("--run-dir", Path(names.HOST_RUN_DIR), "share directories, on the host's tmpfs", Path)
    add("--library", library.default_source(), "the library for tenants", Path)
    add("--smi", "nvidia-smi", "the driver's tool for time slices and compute mode")
    add("--mps-control", "nvidia-cuda-mps-control", "control program of MPS")
    add("--reserve", "0Mi", "memory per GPU that is never handed out, by default")
    add("--shares", 16, "most tenants per GPU, by default", int)
    add("--outside-quiet-s", 60.0, "how long memory held outside shares must be free to be offered", float)
    add("--settle-s", 5.0, "how long growth of a share waits after the capacity was lowered", float)
    add("--health-calm-s", 30.0, "how long a GPU must look well after a reset", float)
    add(
        "--context-estimate",
        "512Mi",
        "what a CUDA context counts until it is measured; at or above what one takes on these GPUs",
    )
    add("--metrics-port", 9410, "port of /metrics, /healthz, /readyz", int)
    add("--hami-metrics", "false", "HAMi's metric names beside ours")
    add("--report-interval-s", 15.0, "least time between two status writes for a claim", float)
    add("--boot-id-file", Path("/proc/sys/kernel/random/boot_id"), "the node's boot id", Path)
    add("--pod-uid", "", "put this pod UID into the socket names")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=environ.get("ALIQUOT_LOG_LEVEL", "info"),
        help="least level that is logged (default: info)",
    )
    return parser
