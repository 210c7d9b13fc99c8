# SPDX-License-Identifier: Apache-2.0
"""What it costs to watch 128 shares, each with a live process in its slot and on its GPU."""

import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aliquot_agent import processes
from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.claims import Claims
from aliquot_agent.enforce import Enforcer
from aliquot_agent.executioner import Executioner
from aliquot_agent.hardware import Hardware
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import GpuProcess, Inventory
from aliquot_agent.outside import Outside
from aliquot_agent.pods import Pod
from aliquot_agent.readiness import Readiness
from aliquot_agent.watcher import Watcher
from tests.bench.figures import Figure, at_most
from tests.unit.agent.kit import FakeGpus, FakeServer, Node, make_claim, make_gpu, result
from tests.unit.agent.tenant import Tenant

GPUS = 8
SHARES_PER_GPU = 16
LOOKS = 20
MIB = 1024**2
CORE_TARGET_PERCENT = 2.0


class _Nvml:
    """NVML with what it answers at hand."""

    def __init__(self, node: Node, running: Mapping[str, tuple[GpuProcess, ...]]) -> None:
        self._node, self._running = node, running

    def inventory(self) -> Inventory:
        return Inventory(gpus=tuple(self._node.gpus.gpus), problems=())

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        return self._running[gpu_uuid]

    def close(self) -> None:
        """Nothing is open."""


class _Nobody:
    """No pod, no server: honest shares need neither."""

    def evict(self, namespace: str, name: str, uid: str) -> None:
        raise AssertionError(name)

    delete_pod = evict

    def pod(self, **_: object) -> None:
        raise AssertionError

    def by_uid(self, uid: str) -> Pod | None:
        return None

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        return ()


@contextmanager
def _tenant(share: Path) -> Iterator[int]:
    """A process that holds 100 MiB and a context in a share; its pid."""
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        tenant = Tenant(share)
        tenant.write(used_bytes=100 * MIB, contexts=1, changes=1)
        os.write(ready_write, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready_read, 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready_read)
        os.close(ready_write)


def watch_figures(root: Path) -> list[Figure]:
    """Looks at all of it."""
    with ExitStack() as tenants:
        return _figures(root, tenants)


def _figures(root: Path, tenants: ExitStack) -> list[Figure]:
    gpus = FakeGpus([make_gpu(index) for index in range(GPUS)])
    node = Node(root=root, gpus=gpus, server=FakeServer())
    claims = node.claims()
    running: dict[str, list[GpuProcess]] = {gpu.uuid: [] for gpu in gpus.gpus}
    shares: dict[int, frozenset[str]] = {}
    for number in range(GPUS * SHARES_PER_GPU):
        gpu = gpus.gpus[number % GPUS]
        ref = node.server.add(make_claim(result(gpu, memory="1000Mi"), name=f"claim-{number}"))
        (device,) = claims.prepare(ref)
        pid = tenants.enter_context(_tenant(node.claims_dir / ref.uid / device.share))
        running[gpu.uuid].append(GpuProcess(host_pid=pid, used_bytes=400 * MIB))
        shares[pid] = frozenset({device.share})
    found = {uuid: tuple(each) for uuid, each in running.items()}
    watcher, hardware = _watcher(node, claims, found, shares)
    hardware.refresh()
    took_ms = []
    for _ in range(LOOKS):
        start_s = time.thread_time()
        watcher.look()
        took_ms.append((time.thread_time() - start_s) * 1000)
    seen = watcher.picture().observations
    watcher.close()
    if len(seen) != GPUS * SHARES_PER_GPU or any(each.usage.used_bytes != 400 * MIB for each in seen):
        raise RuntimeError("the watcher did not see what is there")
    name = f"watch {len(seen)} shares, share of a core"
    return [
        at_most(name, statistics.median(took_ms) / 10, "%", target=CORE_TARGET_PERCENT),
        at_most("first look (maps of every process)", max(took_ms), "ms", target=500),
    ]


def _watcher(
    node: Node,
    claims: Claims,
    running: Mapping[str, tuple[GpuProcess, ...]],
    shares: Mapping[int, frozenset[str]],
) -> tuple[Watcher, Hardware]:
    policy = NodePolicy()
    hardware = Hardware(
        open_nvml=lambda: _Nvml(node, running),  # type: ignore[arg-type, return-value] # same three methods
        readiness=Readiness(),
        policy=lambda: policy,
    )
    nobody = _Nobody()
    watcher = Watcher(
        claims=claims,
        hardware=hardware,
        pods=nobody,
        judge=Enforcer(killer=Executioner(), api=nobody, events=nobody, policy=lambda: policy),
        outside=Outside(quiet_s=60),
        policy=lambda: policy,
        changed=lambda: None,
        mounted=lambda pid: shares[pid],
        has_library=lambda pid: processes.has_library(pid) or True,  # costs what it costs
    )
    return watcher, hardware
