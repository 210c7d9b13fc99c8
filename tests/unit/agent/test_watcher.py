# SPDX-License-Identifier: Apache-2.0
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot_agent import region, sharedir
from aliquot_agent.errors import NvmlError
from aliquot_agent.hardware import Hardware
from aliquot_agent.nvml import GpuProcess, Inventory
from aliquot_agent.readiness import Readiness
from aliquot_agent.watcher import Watcher
from tests.unit.agent.kit import ESTIMATE, Node, make_claim, result
from tests.unit.agent.tenant import Tenant

MIB = 1024**2


class FakeNvml:
    """NVML of a node, with processes by GPU."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.running: dict[str, tuple[GpuProcess, ...]] = {}
        self.broken = False

    def inventory(self) -> Inventory:
        return Inventory(gpus=tuple(self._node.gpus.gpus), problems=())

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        if self.broken:
            raise NvmlError("fell off the bus")
        return self.running.get(gpu_uuid, ())

    def close(self) -> None:
        """Nothing is open."""


class Scene:
    """One prepared share, watched; this process is its tenant."""

    def __init__(self, node: Node, *, memory: str | None = "8000Mi", cores: str = "0") -> None:
        self.nvml = FakeNvml(node)
        self.gpu = node.gpus.gpus[0]
        self.hardware = Hardware(
            open_nvml=lambda: self.nvml,  # type: ignore[arg-type, return-value] # same three methods
            readiness=Readiness(),
            reserve_bytes=0,
            shares_per_gpu=16,
        )
        self.hardware.refresh()
        self.claims = node.claims()
        ref = node.server.add(make_claim(result(self.gpu, memory=memory, cores=cores)))
        (device,) = self.claims.prepare(ref)
        self.uid = ref.uid
        self.share: Path = node.claims_dir / ref.uid / device.share
        self.mounted = {device.share}  # where this process lives, as in its container
        self.watcher = Watcher(
            claims=self.claims,
            hardware=self.hardware,
            changed=lambda: None,
            mounted=lambda _: frozenset(self.mounted),
        )

    def use(self, used_bytes: int) -> None:
        """NVML shows this process with so much."""
        self.nvml.running[self.gpu.uuid] = (GpuProcess(host_pid=os.getpid(), used_bytes=used_bytes),)


@pytest.fixture
def scene(node: Node) -> Iterator[Scene]:
    scene = Scene(node)
    yield scene
    scene.watcher.close()


def test_a_process_is_measured_and_told_its_host_pid(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB, contexts=1, changes=1)
    tenant.deny(4)
    scene.use(400 * MIB)

    scene.watcher.look()
    (seen,) = scene.watcher.picture().observations
    assert seen.usage.used_bytes == 100 * MIB + ESTIMATE  # not believed yet

    scene.watcher.look()
    (seen,) = scene.watcher.picture().observations
    assert (seen.usage.used_bytes, seen.usage.denied, seen.usage.processes) == (400 * MIB, 4, 1)
    assert seen.usage.limit_bytes == 8000 * MIB
    with sharedir.ShareFiles(path=scene.share) as opened:
        slot = opened.slot(0)
        assert slot is not None
        assert (slot.host_pid, slot.overhead_bytes, slot.measured_contexts) == (os.getpid(), 300 * MIB, 1)
    tenant.die()


def test_the_peak_stays_when_use_falls(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=500 * MIB)
    scene.watcher.look()
    tenant.write(used_bytes=10 * MIB)
    scene.watcher.look()
    (seen,) = scene.watcher.picture().observations
    assert (seen.usage.used_bytes, seen.usage.peak_bytes) == (10 * MIB, 500 * MIB)
    tenant.die()


def test_the_slot_of_a_dead_process_is_freed(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    scene.watcher.look()
    assert scene.watcher.picture().observations[0].usage.processes == 1

    tenant.die()
    scene.watcher.look()
    usage = scene.watcher.picture().observations[0].usage
    assert (usage.processes, usage.used_bytes) == (0, 0)


def test_a_live_process_that_lost_its_lock_keeps_its_slot(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    scene.use(100 * MIB)
    scene.watcher.look()  # learns the host pid
    tenant.die()  # closed all its descriptors
    scene.watcher.look()
    assert scene.watcher.picture().observations[0].usage.used_bytes == 100 * MIB


def test_a_ledger_that_was_truncated_is_put_right(
    scene: Scene, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi"), name="neighbour"))
    scene.claims.prepare(ref)
    tenant = Tenant(scene.share)
    for _ in range(2):
        tenant.truncate()
        (scene.share / "ledger").chmod(0o4755)
        scene.watcher.look()
        status = (scene.share / "ledger").stat()
        assert (status.st_size, stat.S_IMODE(status.st_mode)) == (region.LEDGER_SIZE, 0o666)
        assert {seen.claim.uid for seen in scene.watcher.picture().observations} == {scene.uid, ref.uid}
    assert [each.message for each in caplog.records].count("share was tampered with") == 1
    tenant.die()


def test_a_quota_that_was_changed_is_put_right(scene: Scene) -> None:
    scene.watcher.look()
    with sharedir.ShareFiles(path=scene.share) as opened:
        opened.set_quota(memory_limit_bytes=80000 * MIB)
        scene.watcher.look()
        assert opened.quota().memory_limit_bytes == 8000 * MIB
    assert scene.watcher.picture().observations[0].usage.limit_bytes == 8000 * MIB


def test_a_damaged_ledger_is_said_and_use_is_what_nvml_shows(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write_over()
    scene.mounted.clear()
    scene.use(300 * MIB)
    scene.watcher.look()
    (seen,) = scene.watcher.picture().observations
    assert seen.damage is not None
    assert "header is damaged" in seen.damage.message
    # This process has none of the share's files mounted, so NVML tells nothing of the share.
    assert (seen.usage.limit_bytes, seen.usage.used_bytes) == (8000 * MIB, 0)

    first = seen.damage
    scene.watcher.look()
    assert scene.watcher.picture().observations[0].damage == first  # one report, not one a second
    tenant.die()


def test_forged_words_are_reported_as_what_nvml_shows(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=2**64 - 1, contexts=1)
    tenant.claim_peak(2**64 - 1)
    scene.use(300 * MIB)
    scene.watcher.look()
    usage = scene.watcher.picture().observations[0].usage
    assert (usage.used_bytes, usage.peak_bytes) == (300 * MIB, 300 * MIB)
    tenant.write(used_bytes=scene.gpu.memory_bytes + 1, contexts=0)  # a count, but more than there is
    scene.watcher.look()
    usage = scene.watcher.picture().observations[0].usage
    assert (usage.used_bytes, usage.peak_bytes) == (300 * MIB, 300 * MIB)
    tenant.die()


def test_forged_words_of_a_process_on_no_gpu_count_nothing(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=2**64 - 1)
    scene.nvml.broken = True
    scene.watcher.look()
    assert scene.watcher.picture().observations[0].usage.used_bytes == 0
    tenant.die()


def test_a_process_in_no_ledger_counts_from_the_second_look_and_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.use(300 * MIB)  # this process, which has no slot
    counts = []
    for _ in range(3):
        scene.watcher.look()
        counts.append(dict(scene.watcher.picture().unaccounted)[scene.gpu.uuid])
    assert counts == [0, 1, 1]
    (record,) = [each for each in caplog.records if "is in no ledger" in each.message]
    assert record.host_pid == os.getpid()  # type: ignore[attr-defined] # put there by `extra`

    tenant = Tenant(scene.share)
    scene.watcher.look()
    assert dict(scene.watcher.picture().unaccounted) == {scene.gpu.uuid: 0}
    tenant.die()


def test_the_processes_of_a_whole_gpu_are_no_strangers(node: Node) -> None:
    scene = Scene(node, memory=None, cores="100")
    scene.use(700 * MIB)
    for _ in range(3):
        scene.watcher.look()
    assert scene.watcher.picture().unaccounted == ((scene.gpu.uuid, 0),)
    scene.watcher.close()


def test_a_gpu_that_nvml_cannot_show_is_reported_from_the_ledger(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    scene.nvml.broken = True
    scene.watcher.look()
    assert scene.watcher.picture().observations[0].usage.used_bytes == 100 * MIB
    tenant.die()


def test_the_agent_beats_in_each_quota(scene: Scene) -> None:
    with sharedir.ShareFiles(path=scene.share) as opened:
        before = opened.quota().heartbeat_ns
        scene.watcher.look()
        assert opened.quota().heartbeat_ns > before


def test_an_unprepared_share_is_forgotten(scene: Scene) -> None:
    scene.watcher.look()
    scene.claims.unprepare(scene.uid)
    scene.watcher.look()
    assert scene.watcher.picture().observations == ()


def test_a_whole_gpu_is_reported_from_nvml(node: Node) -> None:
    scene = Scene(node, memory=None, cores="100")
    scene.use(700 * MIB)
    scene.watcher.look()
    scene.use(50 * MIB)
    scene.watcher.look()
    (seen,) = scene.watcher.picture().observations
    assert (seen.usage.used_bytes, seen.usage.peak_bytes, seen.usage.processes) == (50 * MIB, 700 * MIB, 1)
    scene.watcher.close()


def test_a_slot_with_the_identity_of_a_neighbours_process_takes_nothing(scene: Scene, node: Node) -> None:
    ref = node.server.add(make_claim(result(scene.gpu, memory="1Gi"), name="hostile"))
    (hostile,) = scene.claims.prepare(ref)
    shares = [scene.share, node.claims_dir / ref.uid / hostile.share]
    tenants = [Tenant(path) for path in shares]
    for tenant in tenants:
        tenant.write(used_bytes=100 * MIB, contexts=1, changes=1)
    scene.use(400 * MIB)
    for _ in range(2):
        scene.watcher.look()
    slots = []
    for path in shares:
        with sharedir.ShareFiles(path=path) as opened:
            slots.append(opened.slot(0))
    assert [slot.host_pid for slot in slots if slot] == [os.getpid(), 0]
    used = {seen.claim.uid: seen.usage.used_bytes for seen in scene.watcher.picture().observations}
    assert used[scene.uid] == 400 * MIB
    for tenant in tenants:
        tenant.die()


def test_a_process_whose_only_slot_is_forged_is_a_stranger(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    scene.mounted.clear()
    scene.use(400 * MIB)
    for _ in range(2):
        scene.watcher.look()
    assert dict(scene.watcher.picture().unaccounted) == {scene.gpu.uuid: 1}
    tenant.die()


def test_blocks_behind_the_end_of_a_ledger_are_given_back(scene: Scene) -> None:
    ledger = scene.share / "ledger"
    subprocess.run(["fallocate", "-n", "-l", "16M", str(ledger)], check=True, timeout=30)
    assert ledger.stat().st_size == region.LEDGER_SIZE
    assert ledger.stat().st_blocks * 512 >= 16 * MIB
    scene.watcher.look()
    assert ledger.stat().st_blocks * 512 < 2 * MIB
