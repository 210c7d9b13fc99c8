# SPDX-License-Identifier: Apache-2.0
"""Aliquot installed on a cluster of the test bed by its chart, and a look inside."""

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from aliquot_api import names
from tests.cluster.api import Object
from tests.cluster.binaries import DEFAULT_KUBERNETES
from tests.cluster.cluster import Cluster
from tests.cluster.system import TestbedError
from tests.system.images import ARCHIVES
from tests.testkit.chart import NAMESPACE, Release, Values, merged

__all__ = ["NAMESPACE", "SIMULATED", "TEST_VALUES", "Installation", "gates", "kubernetes_version"]

TEST_VALUES: Final[Values] = {
    "agent": {
        "settings": {"reportIntervalS": 1, "healthCalmS": 3, "settleS": 2, "outsideQuietS": 3},
    },
    "controller": {"settings": {"collectIntervalS": 1, "staleAfterS": 60}},
    "webhook": {"settings": {"templateGraceS": 6, "apiRequestLimitS": 2, "clockSkewS": 1}},
}
"""Intervals that a test can wait for."""
SIMULATED: Final[Values] = {
    "images": {"tag": "dev", "pullPolicy": "Never"},
    "simulatedGpu": {"enabled": True},
}
"""Images of this tree, on nodes with one simulated L4 each."""


def kubernetes_version() -> str:
    return os.environ.get("KUBERNETES", DEFAULT_KUBERNETES)


def gates() -> dict[str, bool]:
    """1.35 has consumable capacity behind a gate that is off by default."""
    return {names.CONSUMABLE_CAPACITY_GATE: True} if kubernetes_version() == "1.35" else {}


class Installation:
    """Aliquot on `bed`, a release of the chart, in images built from this tree."""

    def __init__(self, bed: Cluster, *, values: Values | None = None) -> None:
        self.bed = bed
        self.values = merged(SIMULATED, values or {})
        self.release = Release(environment=bed.environment())

    def install(self) -> None:
        """Loads the images and installs the chart; does not wait."""
        self.load_images()
        self.release.install(self.values)

    def load_images(self) -> None:
        """Gives every node the images."""
        for archive in ARCHIVES:  # one by one: the base that they share is unpacked once
            self.bed.load_image(archive)

    def wait_ready(self, *, timeout_s: float = 60) -> None:
        """Waits until every pod of ours is Ready and each node's GPUs are published."""
        self.bed.wait_for(self._is_ready, what="Aliquot to be ready", timeout_s=timeout_s)

    def pod_of(self, component: str, *, node: str | None = None) -> Object:
        """The running pod of aliquot-webhook, aliquot-agent or aliquot-sim (on `node`)."""
        pods = self.bed.list("pods", NAMESPACE, labels=f"app.kubernetes.io/name={component}")
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        [pod] = [pod for pod in living if node in (None, pod["spec"]["nodeName"])]
        return pod

    def slices(self) -> list[Object]:
        """Our ResourceSlices."""
        return [each for each in self.bed.list("resourceslices") if each["spec"]["driver"] == names.DRIVER]

    def devices(self, node: str) -> list[Object]:
        """The devices that are published for `node`."""
        return [
            device
            for each in self.slices()
            if each["spec"]["nodeName"] == node
            for device in each["spec"].get("devices") or []
        ]

    def books(self, node: str) -> Any:
        """The simulated driver's own books of `node`."""
        sim = self.pod_of("aliquot-sim", node=node)["metadata"]["name"]
        return json.loads(self.bed.exec(sim, ["/opt/aliquot-sim/aliquot-sim", "books", "--json"], NAMESPACE))

    def inject(self, node: str, *words: str) -> None:
        """Makes a fault of `node`'s GPUs, or ends it: `aliquot-sim inject`."""
        sim = self.pod_of("aliquot-sim", node=node)["metadata"]["name"]
        self.bed.exec(sim, ["/opt/aliquot-sim/aliquot-sim", "inject", *words], NAMESPACE)

    def peak_bytes(self, node: str, pod: str) -> int:
        """The most GPU memory that the containers of pods named `pod` ever held, by the driver's books."""
        groups = [group for group in self.books(node)["groups"] if group["host"] == pod]
        return max(int(group["peak"]) for group in groups)

    def used_bytes(self, node: str) -> int:
        """The GPU memory that is in use on `node`, by the driver's books."""
        return sum(int(gpu["used"]) for gpu in self.books(node)["gpus"])

    def metrics(self, node: str) -> str:
        """The agent's metrics page."""
        return self._agent_page(node, "metrics")

    def readiness(self, node: str | None = None) -> str:
        """What the agent says of its readiness: the reasons against it."""
        return self._agent_page(node, "readyz")

    def status(self, node: str | None = None) -> Any:
        """What `aliquot-agent status --json` prints."""
        return json.loads(self._agent_page(node, "status"))

    def _agent_page(self, node: str | None, page: str) -> str:
        return self.page_at(self.pod_of("aliquot-agent", node=node)["status"]["podIP"], page)

    @staticmethod
    def page_at(address: str, page: str) -> str:
        """A page of the agent at an address; needs no API server."""
        try:
            with urllib.request.urlopen(f"http://{address}:9410/{page}", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def agent_status(self, node: str) -> Object:
        """Status of the agent's own container, beside which others run in the pod."""
        statuses = self.pod_of("aliquot-agent", node=node)["status"]["containerStatuses"]
        [found] = [status for status in statuses if status["name"] == "agent"]
        return dict(found)

    def kill_agent(self, node: str) -> int:
        """SIGKILL to the agent's process on `node`; answers its pid."""
        pid = _pid_of(self.agent_status(node)["containerID"].partition("//")[2])
        os.kill(pid, signal.SIGKILL)
        return pid

    def files(self, node: str) -> list[str]:
        """Everything on `node` that belongs to prepared claims: share directories, CDI specs, checkpoints."""
        found: list[str] = []
        for folder in (f"{names.HOST_RUN_DIR}/claims", f"{names.PLUGIN_DIR}/claims", names.CDI_DIR):
            try:
                listing = self.bed.node_exec(node, ["/usr/bin/find", folder, "-mindepth", "1"])
            except TestbedError as error:  # a folder that was never made holds nothing
                if "No such file" not in str(error):
                    raise
                continue
            found += [
                line for line in listing.splitlines() if names.DRIVER in line or folder != names.CDI_DIR
            ]
        return found

    def _is_ready(self) -> bool:
        pods = self.bed.list("pods", NAMESPACE, labels="app.kubernetes.io/name!=aliquot-hooks")
        # Two webhooks and two controllers; agent and simulator on each node.
        wanted = 4 + 2 * len(self.bed.nodes)
        ready = [pod for pod in pods if _is_true(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]]
        return len(ready) == len(pods) >= wanted and all(self.devices(node) for node in self.bed.nodes)


def _is_true(of: Object, condition: str) -> bool:
    conditions = of.get("status", {}).get("conditions", [])
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def _pid_of(container_id: str) -> int:
    """First process of a container, found by its cgroup (the pid namespace is the machine's)."""
    pids = [
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/cgroup")
        if container_id in _read(entry)
    ]
    return min(pids)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
