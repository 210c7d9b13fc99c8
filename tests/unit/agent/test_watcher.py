# SPDX-License-Identifier: Apache-2.0
import errno
import logging
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent import region, resize, sharedir
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.claims import ClaimRef
from aliquot_agent.enforce import Enforcer
from aliquot_agent.errors import NvmlError
from aliquot_agent.executioner import Target
from aliquot_agent.hardware import Hardware
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import GpuProcess, Inventory
from aliquot_agent.outside import Outside
from aliquot_agent.picture import Observation
from aliquot_agent.pods import Pod
from aliquot_agent.processes import Place
from aliquot_agent.readiness import Readiness
from aliquot_agent.watcher import Watcher
from aliquot_api.config import OverQuota
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


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakeKiller:
    """Keeps whom it was told to end."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def end(self, target: Target, *, grace_s: float, ask: bool = True) -> bool:
        self.ended.append(target.host_pid)
        return True

    def condemned(self, target: Target) -> bool:
        return target.host_pid in self.ended


class Nobody:
    """A server where nothing happens, and no pod is known."""

    def evict(self, namespace: str, name: str, uid: str) -> None:
        raise AssertionError("no eviction is expected")

    delete_pod = evict

    def pod(self, **_: object) -> None:
        raise AssertionError("no pod is known")

    def by_uid(self, uid: str) -> Pod | None:
        return None

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        return ()


class Scene:
    """One prepared share, watched; this process is its tenant."""

    def __init__(self, node: Node, *, memory: str | None = "8000Mi", cores: str = "0") -> None:
        self.nvml = FakeNvml(node)
        self.gpu = node.gpus.gpus[0]
        self.policy = NodePolicy()
        self.hardware = Hardware(
            open_nvml=lambda: self.nvml,  # type: ignore[arg-type, return-value] # same three methods
            readiness=Readiness(),
            policy=lambda: self.policy,
        )
        self.hardware.refresh()
        self.claims = node.claims()
        ref = node.server.add(make_claim(result(self.gpu, memory=memory, cores=cores)))
        (device,) = self.claims.prepare(ref)
        self.uid = ref.uid
        self.share: Path = node.claims_dir / ref.uid / device.share
        self.mounted = {device.share}  # where this process lives, as in its container
        self.clock = Clock()
        self.killer = FakeKiller()
        self.outside = Outside(quiet_s=60)
        self.library = True
        self.changes: list[int] = []
        self.watcher = self.new_watcher()

    def new_watcher(self, nobody: Nobody | None = None, **options: Any) -> Watcher:
        """As after a restart of the agent."""
        nobody = nobody or Nobody()
        enforcer = Enforcer(killer=self.killer, api=nobody, events=nobody, policy=lambda: self.policy)
        return Watcher(
            claims=self.claims,
            hardware=self.hardware,
            pods=nobody,
            judge=enforcer,
            outside=self.outside,
            policy=lambda: self.policy,
            changed=lambda: self.changes.append(1),
            mounted=lambda _: frozenset(self.mounted),
            has_library=lambda _: self.library,
            monotonic_s=self.clock,
            **options,
        )

    def look(self, times: int = 1) -> Observation:
        """Looks, a second apart; what was seen of the first share."""
        for _ in range(times):
            self.clock.now_s += 1
            self.watcher.look()
        return self.watcher.picture().observations[0]

    def faults(self) -> dict[str, str]:
        """Reasons of the faults that are shown."""
        return {fault.kind: fault.reason for fault in self.watcher.picture().observations[0].faults}

    def change(self, change: Callable[[PreparedShare], PreparedShare]) -> None:
        """Changes the share's checkpoint."""
        assert self.claims.change_share(self.uid, self.share.name, change) is not None

    @property
    def limit_bytes(self) -> int:
        """The limit in the quota."""
        with sharedir.ShareFiles(path=self.share) as opened:
            return opened.quota().memory_limit_bytes

    @property
    def floor_bytes(self) -> int:
        """The floor in the quota."""
        with sharedir.ShareFiles(path=self.share) as opened:
            return opened.quota().floor_bytes

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


def test_an_idle_share_is_reckoned_anew_only_when_something_changes(scene: Scene) -> None:
    idle = scene.look(2)
    assert scene.look() is idle
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    assert scene.look().usage.processes == 1
    tenant.deny(3)
    tenant.die()
    after = scene.look(2)
    assert (after.usage.processes, after.usage.denied, after.usage.peak_bytes) == (0, 3, 100 * MIB)
    assert scene.look() is after
    again = Tenant(scene.share)  # in the slot that was freed: the header stays as it is
    again.write(used_bytes=50 * MIB)
    assert scene.look().usage.used_bytes == 50 * MIB
    again.die()
    scene.look(2)
    scene.change(lambda share: replace(share, limit_bytes=1000 * MIB))
    assert scene.look().usage.limit_bytes == 1000 * MIB
    scene.use(200 * MIB)
    assert scene.look().measured_bytes == 200 * MIB
    scene.nvml.running.clear()
    scene.nvml.broken = True
    assert scene.look().measured_bytes is None


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
    assert scene.look(2).usage.used_bytes == 100 * MIB
    assert scene.faults() == {"LedgerDamaged": "SlotWithoutLock"}


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


def test_a_quota_that_was_changed_is_put_right(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.watcher.look()
    with sharedir.ShareFiles(path=scene.share) as opened:
        opened.set_quota(memory_limit_bytes=80000 * MIB)
        scene.watcher.look()
        assert opened.quota().memory_limit_bytes == 8000 * MIB
    assert scene.watcher.picture().observations[0].usage.limit_bytes == 8000 * MIB
    assert [each.message for each in caplog.records].count("share was tampered with") == 1


def test_a_quota_that_another_agent_laid_out_is_brought_up_to_date_and_no_tenant_is_suspected(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with (scene.share / "quota").open("r+b") as quota:
        quota.seek(region.QuotaLayout.log_path.offset - 8)  # reserved here
        quota.write((5).to_bytes(8, "little"))
    scene.look(2)
    said = [each.message for each in caplog.records]
    assert sum(message.startswith("quota brought up to date") for message in said) == 1
    assert "share was tampered with" not in said


def test_a_damaged_ledger_is_said_and_healed_and_use_is_what_nvml_shows(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    scene.look()
    tenant.write_over()
    scene.use(300 * MIB)
    seen = scene.look()
    (fault,) = [fault for fault in seen.faults if fault.kind == "LedgerDamaged"]
    assert (fault.reason, fault.message) == ("HeaderOverwritten", "ledger header is damaged")
    assert (seen.usage.limit_bytes, seen.usage.used_bytes) == (8000 * MIB, 300 * MIB)

    seen = scene.look()  # healed, and shown for a while
    assert seen.faults == (fault,)
    assert seen.usage.processes == 1
    scene.use(0)
    scene.clock.now_s += 120
    assert scene.look().faults == ()
    tenant.die()


def test_slots_that_were_hidden_are_found_again(scene: Scene) -> None:
    tenant = Tenant(scene.share, index=3)
    tenant.write(used_bytes=100 * MIB)
    assert scene.look().usage.used_bytes == 100 * MIB
    tenant.hide_slots()
    assert scene.look().usage.used_bytes == 100 * MIB
    assert scene.faults() == {"LedgerDamaged": "SlotsHidden"}
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
    scene.mounted.clear()  # and in no container of its
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


def test_a_process_outside_the_shim_is_named_floored_and_ended(scene: Scene) -> None:
    scene.use(9000 * MIB)  # this process has the share's mounts and no slot
    assert scene.look().faults == ()
    scene.look()
    assert scene.faults() == {"ShimMissing": "OutsideTheLibrary", "WithinQuota": "OverQuota"}
    assert scene.floor_bytes == 9000 * MIB
    assert scene.killer.ended == [os.getpid()]
    seen = scene.watcher.picture().observations[0]
    assert (seen.measured_bytes, seen.drift_bytes, seen.killed) == (9000 * MIB, 9000 * MIB, 1)

    scene.nvml.running.clear()
    scene.look()
    assert scene.floor_bytes == 0
    scene.clock.now_s += 120
    assert scene.look().faults == ()
    assert scene.look().within_since != ""


def test_a_slot_without_the_library_does_not_count_as_the_shim(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=300 * MIB)
    scene.library = False
    scene.use(300 * MIB)
    scene.look()
    assert scene.faults() == {}
    scene.look()
    assert scene.faults() == {"ShimMissing": "OutsideTheLibrary"}
    tenant.die()


def test_an_honest_share_gets_no_floor_and_no_fault(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=7000 * MIB, contexts=1, changes=1)
    scene.use(7300 * MIB)
    scene.look(5)
    assert (scene.faults(), scene.floor_bytes, scene.killer.ended) == ({}, 0, [])
    tenant.die()


def test_a_slot_that_was_lowered_is_seen_and_the_floor_counts(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=0, contexts=0, changes=1)
    scene.use(5000 * MIB)
    scene.look(2)
    assert scene.faults() == {"BooksDiffer": "MoreThanCounted"}
    assert scene.floor_bytes == 5000 * MIB
    tenant.die()


def test_a_process_that_came_while_the_driver_was_asked_is_no_stranger(scene: Scene) -> None:
    tenants: list[Tenant] = []
    listed = scene.nvml.processes

    def come(gpu_uuid: str) -> tuple[GpuProcess, ...]:
        if not tenants:
            tenants.append(Tenant(scene.share))
            tenants[0].write(used_bytes=9000 * MIB)
        return listed(gpu_uuid)

    scene.nvml.processes = come  # type: ignore[method-assign] # a process between two reads
    scene.use(9000 * MIB)
    scene.look()
    assert dict(scene.watcher.picture().unaccounted) == {scene.gpu.uuid: 0}
    tenants[0].die()


def test_memory_outside_any_share_is_seen_on_every_gpu(scene: Scene, node: Node) -> None:
    other = node.gpus.gpus[1]
    scene.mounted.clear()
    scene.use(300 * MIB)
    scene.nvml.running[other.uuid] = (GpuProcess(host_pid=os.getpid(), used_bytes=500 * MIB),)
    scene.look(2)
    assert dict(scene.watcher.picture().outside) == {scene.gpu.uuid: 300 * MIB, other.uuid: 500 * MIB}
    assert scene.outside.withheld_bytes(other.uuid) == 512 * MIB
    assert scene.changes == [1]
    assert scene.killer.ended == []  # nobody's share, nobody's quota


def test_a_limit_goes_up_at_once_and_down_with_the_use(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=6000 * MIB + 1)
    scene.look()
    scene.change(lambda share: replace(share, limit_bytes=4000 * MIB))
    assert scene.look().usage.limit_bytes == scene.limit_bytes == 6001 * MIB
    tenant.write(used_bytes=5000 * MIB)
    assert scene.look().usage.limit_bytes == 5000 * MIB
    tenant.write(used_bytes=5000 * MIB)
    scene.look(5)
    assert scene.killer.ended == []
    tenant.write(used_bytes=100 * MIB)
    assert scene.look().usage.limit_bytes == 4000 * MIB
    scene.change(lambda share: replace(share, limit_bytes=None))
    assert scene.look().usage.limit_bytes == scene.limit_bytes == 8000 * MIB
    tenant.die()


def test_a_limit_that_is_on_its_way_down_goes_on_after_a_restart(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=6000 * MIB)
    scene.look()
    scene.change(lambda share: replace(share, limit_bytes=4000 * MIB))
    scene.look()
    scene.watcher.close()
    scene.watcher = scene.new_watcher()
    tenant.write(used_bytes=7000 * MIB)  # which the shim would have refused
    assert scene.look().usage.limit_bytes == 6000 * MIB
    scene.claims.repair(scene.claims.prepared()[0])
    assert scene.limit_bytes == 6000 * MIB
    tenant.die()


def test_growth_that_is_withdrawn_counts_as_too_much_after_ten_seconds(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    scene.change(lambda share: resize.granted(resize.asked(share, 12000 * MIB)))
    tenant.write(used_bytes=11000 * MIB)
    scene.use(11000 * MIB)
    assert scene.look().usage.limit_bytes == 12000 * MIB
    scene.change(resize.withdrawn)
    assert scene.look().usage.limit_bytes == 11000 * MIB  # nothing more from now on
    assert scene.watcher.picture().observations[0].share.growth is Growth.LEAVING
    scene.look(8)
    assert scene.killer.ended == []
    scene.look(4)
    assert scene.killer.ended == [os.getpid()]
    tenant.die()


def test_one_damaged_share_does_not_stop_the_others(scene: Scene, node: Node) -> None:
    ref = node.server.add(make_claim(result(scene.gpu, memory="1Gi"), name="neighbour"))
    scene.claims.prepare(ref)
    tenant = Tenant(scene.share)
    tenant.write_over()
    scene.use(9000 * MIB)
    scene.look(2)
    seen = {each.claim.uid: each for each in scene.watcher.picture().observations}
    assert (seen[ref.uid].faults, seen[ref.uid].usage.used_bytes) == ((), 0)
    tenant.die()


class TwoPods(Nobody):
    """Two pods hold the claim."""

    honest = Pod(uid="uid-honest", namespace="team-a", name="honest")
    hog = Pod(uid="uid-hog", namespace="team-a", name="hog")

    def __init__(self) -> None:
        self.told: list[object] = []

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        return self.honest, self.hog

    def pod(self, **said: object) -> None:
        self.told.append(said["uid"])


def test_of_two_pods_on_a_share_the_offenders_is_evicted_not_the_biggest(scene: Scene) -> None:
    scene.policy = NodePolicy(policy=OverQuota.EVICT)
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=6000 * MIB)
    pods = TwoPods()
    with subprocess.Popen(["sleep", "60"]) as hog:
        scene.nvml.running[scene.gpu.uuid] = (
            GpuProcess(host_pid=os.getpid(), used_bytes=6000 * MIB),
            GpuProcess(host_pid=hog.pid, used_bytes=3000 * MIB),  # in no slot
        )
        uids = {os.getpid(): pods.honest.uid, hog.pid: pods.hog.uid}
        scene.watcher = scene.new_watcher(pods, places=lambda pid: (Place(uids[pid], ""),))
        scene.look(3)
        hog.terminate()
    assert scene.killer.ended == [hog.pid]
    assert pods.told == ["uid-hog"]
    tenant.die()


def test_a_header_written_over_while_it_is_put_right_ends_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = Tenant(scene.share)
    scene.look()
    put_back = sharedir.ShareFiles.write_slots_used

    def and_write_over(files: sharedir.ShareFiles, count: int) -> None:
        put_back(files, count)
        tenant.write_over()

    monkeypatch.setattr(sharedir.ShareFiles, "write_slots_used", and_write_over)
    tenant.hide_slots()
    scene.look()
    monkeypatch.undo()
    assert scene.look(2).usage.processes == 1
    tenant.die()


def test_a_ledger_that_cannot_be_written_ends_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    scene.use(300 * MIB)
    monkeypatch.setattr(os, "pwrite", full)
    assert scene.look(3).measured_bytes == 300 * MIB
    tenant.die()
    scene.use(0)
    scene.look(2)
    monkeypatch.undo()
    assert scene.look().usage.processes == 0


def test_a_share_that_was_made_anew_between_two_looks_is_opened_anew(scene: Scene, node: Node) -> None:
    scene.look()
    scene.claims.unprepare(scene.uid)
    ((namespace, name),) = node.server.claims
    scene.claims.prepare(ClaimRef(namespace=namespace, name=name, uid=scene.uid))
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    assert scene.look().usage.used_bytes == 100 * MIB
    tenant.die()


def test_a_share_that_escapes_its_pacing_shows_it_and_its_processes(scene: Scene) -> None:
    tenant = Tenant(scene.share)
    tenant.write(used_bytes=100 * MIB)
    scene.use(100 * MIB)
    told = {(scene.uid, scene.share.name): "uses too much"}
    scene.watcher = scene.new_watcher(escape=told.pop)
    assert scene.look().host_pids == (os.getpid(),)
    assert scene.faults() == {"PacingEscaped": "MoreThanItsCores"}
    tenant.die()
