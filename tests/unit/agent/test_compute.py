# SPDX-License-Identifier: Apache-2.0
"""The thread that holds cores, on real files, in a time that the test moves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aliquot_agent import region, sharedir
from aliquot_agent.attribution import Key
from aliquot_agent.compute import Compute
from aliquot_agent.holding import LOAN_NS
from aliquot_agent.nvml import Use
from aliquot_agent.pacing import PacedShare
from aliquot_agent.region import COST_FACTOR_ONE, Pacing, Quota
from aliquot_api.config import ComputePolicy, Priority
from tests.unit.agent.tenant import Tenant

MS = 1_000_000
SECOND = 1000 * MS
STEP = 50 * MS
GPU = "GPU-a"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
WALL_AHEAD = 7_000_000 * SECOND


@dataclass
class World:
    """Shares of one GPU with their tenants, and what NVML says of them."""

    root: Path
    now_ns: int = 10_000 * SECOND
    shares: list[PacedShare] = field(default_factory=list)
    tenants: dict[Key, Tenant] = field(default_factory=dict)
    users: dict[int, Key] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)
    """Percent by host pid."""
    lag_ns: int = 0
    supported: bool = True
    escapes: list[str] = field(default_factory=list)

    def add(
        self,
        percent: int,
        policy: ComputePolicy = ComputePolicy.FAIR,
        priority: Priority = Priority.LOW,
    ) -> Key:
        """A share of so much, with a process whose host pid is 1, 2, …"""
        number = len(self.shares) + 1
        path = self.root / f"share-{number}"
        sharedir.create(path, Quota(gpu_uuid=UUID, memory_limit_bytes=1, cores_millipercent=percent * 1000))
        key = ("claim", path.name)
        self.shares.append(PacedShare(key, path, GPU, percent * 1000, policy, priority))
        self.tenants[key] = Tenant(path)
        self.users[number] = key
        return key

    def agent(self) -> Compute:
        """A new agent process."""
        return Compute(
            shares=lambda: self.shares,
            users=lambda: self.users,
            use=self.use,
            escaped=lambda _, words: self.escapes.append(words),
            monotonic_ns=lambda: self.now_ns,
            wall_ns=lambda: self.now_ns + WALL_AHEAD,
        )

    def use(self, gpu_uuid: str, since_us: int) -> Sequence[Use] | None:
        """What NVML says."""
        assert gpu_uuid == GPU
        if not self.supported:
            return None
        stamp_us = (self.now_ns + WALL_AHEAD - self.lag_ns) // 1000
        assert stamp_us > since_us
        return [Use(pid, stamp_us, percent) for pid, percent in self.busy.items() if percent]

    def words(self, key: Key) -> Pacing:
        """What stands in a quota."""
        with sharedir.ShareFiles(path=self.root / key[1]) as files:
            return files.pacing()

    def lent(self, key: Key) -> int:
        """What of a loan is in force."""
        words = self.words(key)
        return words.lent_millipercent if words.lent_until_ns > self.now_ns else 0

    def launch(self, key: Key, *, held: bool = False, granted_ns: int | None = None) -> None:
        """A launch now."""
        words = {"last_launch_ns": self.now_ns}
        if held:
            words["waiting_until_ns"] = self.now_ns + 5 * MS
        if granted_ns is not None:
            words["granted_ns"] = granted_ns
        self.tenants[key].pace(**words)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for tenant in made.tenants.values():
        tenant.die()


def pass_time(world: World, agent: Compute, ns: int, *, held: Sequence[Key] = ()) -> None:
    """So much time, in which these shares launch and are held."""
    for _ in range(ns // STEP):
        for key in held:
            world.launch(key, held=True)
        agent.step()
        world.now_ns += STEP


def test_an_idle_share_is_lent_within_two_seconds_and_is_back_within_a_fifth_of_one(world: World) -> None:
    small, large = world.add(30), world.add(70)
    agent = world.agent()
    pass_time(world, agent, SECOND, held=[small, large])
    assert world.lent(small) == world.lent(large) == 0
    pass_time(world, agent, 2 * SECOND, held=[small])
    assert (world.lent(small), world.lent(large)) == (70_000, 0)
    world.launch(large)
    pass_time(world, agent, 200 * MS, held=[small])
    assert world.lent(small) == 0
    agent.stop()


def test_a_loan_expires_when_the_agent_dies(world: World) -> None:
    share = world.add(30)
    agent = world.agent()
    pass_time(world, agent, SECOND, held=[share])
    assert world.lent(share) == 70_000
    world.now_ns += LOAN_NS
    assert world.lent(share) == 0
    agent.stop()


def test_a_share_without_a_reservation_stays_held_when_the_agent_dies(world: World) -> None:
    reserved, free = world.add(80, ComputePolicy.STRICT), world.add(0)
    agent = world.agent()
    pass_time(world, agent, SECOND, held=[free])
    assert world.lent(free) == 100_000
    pass_time(world, agent, SECOND, held=[reserved, free])
    world.now_ns += 3600 * SECOND
    assert world.lent(free) == 20_000
    agent.stop()


def test_the_number_of_a_share_without_a_reservation_comes_within_a_fifth_of_a_second(world: World) -> None:
    reserved, free = world.add(80), world.add(0)
    agent = world.agent()
    pass_time(world, agent, SECOND)
    assert world.lent(free) == 100_000
    world.launch(reserved)
    pass_time(world, agent, 200 * MS)
    assert world.lent(free) == 1_000
    agent.stop()


def test_a_share_without_a_reservation_is_not_held_once_nobody_has_one(world: World) -> None:
    world.add(80)
    free = world.add(0)
    agent = world.agent()
    pass_time(world, agent, SECOND)
    assert world.lent(free) == 100_000
    world.shares.pop(0)
    pass_time(world, agent, 2 * SECOND)
    assert world.lent(free) == 0
    agent.stop()


def test_a_share_that_is_not_to_be_held_is_not(world: World) -> None:
    share = world.add(30, ComputePolicy.OFF)
    agent = world.agent()
    pass_time(world, agent, SECOND, held=[share])
    assert world.words(share).cores_millipercent == world.lent(share) == 0
    world.shares[0] = replace(world.shares[0], policy=ComputePolicy.STRICT)
    pass_time(world, agent, 2 * SECOND, held=[share])
    assert (world.words(share).cores_millipercent, world.lent(share)) == (30_000, 0)
    agent.stop()


def test_priority_stands_in_the_quota(world: World) -> None:
    high, low = world.add(10, priority=Priority.HIGH), world.add(10)
    agent = world.agent()
    pass_time(world, agent, SECOND, held=[high, low])
    assert (world.words(high).priority, world.words(low).priority) == (1, 0)
    assert (world.lent(high), world.lent(low)) == (80_000, 0)
    agent.stop()


@pytest.mark.parametrize("lag_ms", [0, 700])
def test_prices_follow_the_driver(world: World, lag_ms: int) -> None:
    """Granted twice as much as used, from the start; also when NVML is late."""
    share = world.add(30, ComputePolicy.STRICT)
    world.lag_ns = lag_ms * MS
    agent = world.agent()
    granted_ns, start_ns = 0, world.now_ns
    for _ in range(200):
        granted_ns += STEP * 6 // 10
        world.launch(share, granted_ns=granted_ns)
        world.busy[1] = 30 if world.now_ns - start_ns > world.lag_ns else 0
        agent.step()
        world.now_ns += STEP
    assert world.words(share).cost_factor_ppm == pytest.approx(COST_FACTOR_ONE // 2, rel=0.06)
    paced = agent.paced()[share]
    assert paced.used_ns == pytest.approx(0.3 * 9 * SECOND, rel=0.2)
    assert paced.granted_ns == pytest.approx(granted_ns, rel=0.11)
    agent.stop()


def test_the_next_agent_goes_on_with_the_prices_of_the_last(world: World) -> None:
    share = world.add(30)
    with sharedir.ShareFiles(path=world.root / share[1]) as files:
        files.set_pacing(files.pacing(), files.pacing()._replace(cost_factor_ppm=600_000))
    agent = world.agent()
    pass_time(world, agent, 2 * SECOND)
    assert world.words(share).cost_factor_ppm == 600_000
    agent.stop()


def test_a_process_that_nobody_knows_yet_spoils_no_price(world: World) -> None:
    share = world.add(30)
    world.users = {}
    world.busy[1] = 30
    agent = world.agent()
    granted_ns = 0
    for _ in range(60):
        granted_ns += STEP * 3 // 10
        world.launch(share, granted_ns=granted_ns)
        agent.step()
        world.now_ns += STEP
    assert world.words(share).cost_factor_ppm == COST_FACTOR_ONE
    agent.stop()


def test_where_the_driver_tells_nothing_nothing_is_corrected_and_it_is_said(world: World) -> None:
    share = world.add(30)
    world.supported = False
    agent = world.agent()
    pass_time(world, agent, 3 * SECOND, held=[share])
    assert agent.untold() == {GPU}
    assert world.words(share).cost_factor_ppm == COST_FACTOR_ONE
    assert world.lent(share) == 70_000
    agent.stop()


def test_one_who_escapes_is_told_of_once_and_gets_nothing_cheaper(world: World) -> None:
    share = world.add(10, ComputePolicy.STRICT)
    world.busy[1] = 90
    agent = world.agent()
    granted_ns = 0
    for _ in range(300):
        granted_ns += 10 * STEP  # a ledger that claims what it likes
        world.launch(share, granted_ns=granted_ns)
        agent.step()
        world.now_ns += STEP
    assert len(world.escapes) == 1
    assert "may use 10 %" in agent.paced()[share].escape
    assert world.words(share).cost_factor_ppm >= COST_FACTOR_ONE
    agent.stop()


def test_words_that_root_changed_are_put_right(world: World) -> None:
    share = world.add(30)
    agent = world.agent()
    pass_time(world, agent, SECOND)
    with sharedir.ShareFiles(path=world.root / share[1]) as files:
        files.set_pacing(files.pacing(), Pacing(cores_millipercent=99_000, priority=1))
    pass_time(world, agent, 2 * SECOND)
    assert (world.words(share).cores_millipercent, world.words(share).priority) == (30_000, 0)
    agent.stop()


def test_words_of_an_unused_gpu_are_put_right_within_seconds_and_decisions_at_once(world: World) -> None:
    share = world.add(30)
    world.users.clear()
    agent = world.agent()
    pass_time(world, agent, SECOND)
    with sharedir.ShareFiles(path=world.root / share[1]) as files:
        files.set_pacing(files.pacing(), Pacing(cores_millipercent=99_000))
    pass_time(world, agent, 6 * SECOND)
    assert world.words(share).cores_millipercent == 30_000
    world.shares[0] = replace(world.shares[0], reserved_millipercent=40_000)
    pass_time(world, agent, 2 * SECOND)
    assert world.words(share).cores_millipercent == 40_000
    agent.stop()


def test_a_share_that_is_prepared_anew_is_held_in_its_new_files(world: World) -> None:
    share = world.add(30)
    world.users.clear()
    agent = world.agent()
    pass_time(world, agent, SECOND)
    path = world.root / share[1]
    with sharedir.ShareFiles(path=path) as files:
        quota = files.quota()
    sharedir.remove(str(path))
    sharedir.create(path, replace(quota, cores_millipercent=99_000))
    world.shares[0] = replace(world.shares[0])
    pass_time(world, agent, 2 * SECOND)
    assert world.words(share).cores_millipercent == 30_000
    agent.stop()


def test_a_spoilt_ledger_and_a_share_that_goes_stop_nothing(world: World) -> None:
    spoilt, gone, share = world.add(10), world.add(10), world.add(10)
    agent = world.agent()
    pass_time(world, agent, SECOND, held=[share])
    world.tenants[spoilt].truncate()
    sharedir.remove(str(world.root / gone[1]))
    world.shares.append(replace(world.shares[0], key=("claim", "nowhere"), path=world.root / "nowhere"))
    pass_time(world, agent, 2 * SECOND, held=[share])
    assert world.lent(share) == 90_000
    assert agent.paced().keys() == {spoilt, share}
    agent.stop()


def test_the_mirror_of_the_words_is_right(world: World) -> None:
    share = world.add(30)
    values = dict(zip(region.Pace._fields, range(1, 6), strict=True))
    world.tenants[share].pace(**values)
    with sharedir.ShareFiles(path=world.root / share[1]) as files:
        assert region.decode_pace(files.pace()) == region.Pace(**values)
