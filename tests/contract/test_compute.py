# SPDX-License-Identifier: Apache-2.0
"""Shim and agent hold shares of a simulated GPU's time: the one paces, the other lends and corrects.

By the simulated driver's own books, with an NVML that is late and speaks in whole percent. On a busy machine
the GPU itself loses time, and what a process wanted it cannot always ask for in time. So shares are compared
with each other, tolerances are wide, and tenants have a while to come to their shares; bench-compute has the
narrow figures.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aliquot_agent import region, sharedir
from aliquot_api.config import ComputePolicy
from shim.tests.sandbox import MIB, ROOT, SIM, Sandbox
from tests.testkit.holder import Holding, holding

WINDOW_S = 2.0
DEADLINE_S = 60.0


@dataclass
class Tenants:
    """Containers with a share each on one simulated GPU, all of which want all of it."""

    root: Path
    shares: list[Path] = field(default_factory=list)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = Sandbox(folder=self.root)
        self.node.start_node("l4")
        self.set("--nvml-lag-ms", "500", "--nvml-step", "1")
        self.gpu = self.node.gpu()
        self.environment = self.node.environment(bare=True)

    def set(self, *words: str) -> None:
        """Settings of the simulated driver."""
        command = [str(SIM / "aliquot-sim"), "set", *words, "--root", str(self.node.node)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)

    def share(self, percent: float) -> None:
        """One more, not running yet."""
        folder = self.root / f"container-{len(self.shares)}"
        path = folder / "shares" / f"share-{len(self.shares)}"
        path.parent.mkdir(parents=True)
        quota = region.Quota(
            gpu_uuid=self.gpu, memory_limit_bytes=2048 * MIB, cores_millipercent=int(percent * 1000)
        )
        sharedir.create(path, quota)
        self.shares.append(path)

    def start(self, kernel: str) -> None:
        """The next share's program."""
        path = self.shares[len(self.running)]
        container = Sandbox(folder=path.parents[1])
        env = container.environment() | {"ALIQUOT_SIM_ROOT": str(self.node.node)}
        client = str(ROOT / "tests/contract/launcher.py")
        process = container.start(sys.executable, client, kernel, env=env)
        self.running.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"

    def order(self, number: int, what: str) -> None:
        """`pause` or `go`."""
        stdin = self.running[number].stdin
        assert stdin
        stdin.write(f"{what}\n")
        stdin.flush()

    def used_ns(self) -> list[int]:
        """GPU time of each so far, by the driver's books."""
        by_pid = {process["pid"]: int(process["gpu_ns"]) for process in self.node.books()["processes"]}
        return [by_pid[process.pid] for process in self.running]

    def parts(self) -> list[float]:
        """Of what was used in some seconds, each one's percentage."""
        before = self.used_ns()
        wait_s(WINDOW_S)
        used = [after - first for after, first in zip(self.used_ns(), before, strict=True)]
        return [100 * each / sum(used) for each in used]

    def come_to(self, shares: Sequence[float], *, tolerance: float) -> None:
        """Until two windows in a row are right together, each share within its part `tolerance`."""
        seen: list[list[float]] = []
        deadline_s = time.monotonic() + DEADLINE_S
        wanted = [pytest.approx(share, rel=tolerance) for share in shares]
        while len(seen) < 2 or [sum(both) / 2 for both in zip(*seen[-2:], strict=True)] != wanted:
            assert time.monotonic() < deadline_s, f"{shares} wanted, in windows of {WINDOW_S} s: {seen}"
            seen.append(self.parts())

    def lent(self, number: int) -> int:
        """What is lent to one now."""
        with sharedir.ShareFiles(path=self.shares[number]) as files:
            words = files.pacing()
        return words.lent_millipercent if words.lent_until_ns > time.monotonic_ns() else 0

    def end(self) -> None:
        """Ends all."""
        for process in self.running:
            process.kill()
            process.communicate()


def wait_s(seconds: float) -> None:
    """A span to measure in: nothing shorter tells a share of time."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(left_s)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Fails when it takes too long."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    made = Tenants(tmp_path)
    yield made
    made.end()


@contextmanager
def competing(
    tenants: Tenants,
    shares: Sequence[float],
    kernels: Sequence[str],
    policy: ComputePolicy,
    high: int | None = None,
) -> Iterator[Holding]:
    """All of them, held."""
    for percent in shares:
        tenants.share(percent)
    chosen = [] if high is None else [tenants.shares[high]]
    with ExitStack() as stack:
        held = stack.enter_context(
            holding(tenants.shares, environment=tenants.environment, policy=policy, high=chosen)
        )
        for kernel in kernels:
            tenants.start(kernel)
        yield held


@pytest.mark.parametrize(
    ("shares", "kernels", "tolerance"),
    [
        pytest.param([30, 70], ["k_1ms", "k_1ms"], 0.15, id="30 and 70"),
        pytest.param([20, 30, 50], ["k_1ms", "k_3ms", "k_5ms"], 0.2, id="20, 30 and 50"),
        pytest.param([12.5] * 8, ["k_1ms", "k_2ms"] * 4, 0.4, id="eight"),
    ],
)
def test_shares_hold_against_each_other(
    tenants: Tenants, shares: list[float], kernels: list[str], tolerance: float
) -> None:
    with competing(tenants, shares, kernels, ComputePolicy.STRICT) as held:
        tenants.come_to(shares, tolerance=tolerance)
        books = tenants.used_ns()
    told = [held.paced[str(path)] for path in tenants.shares]
    assert [each["escape"] for each in told] == [""] * len(shares)
    # What is billed is what the driver's own books say, but for what NVML has not told yet.
    assert [each["used_ns"] / 1e9 for each in told] == [
        pytest.approx(used_ns / 1e9, rel=0.25, abs=1.5) for used_ns in books
    ]


def test_an_idle_share_is_lent_and_comes_back(tenants: Tenants) -> None:
    with competing(tenants, [30, 70], ["k_1ms", "k_1ms"], ComputePolicy.FAIR):
        wait_until(lambda: tenants.lent(0) == 0, "the loan from before the other's start ends")
        tenants.order(1, "pause")
        wait_until(lambda: tenants.lent(0) == 70_000, "an idle share is lent")
        wait_until(lambda: tenants.parts()[0] > 95, "the borrower has all of the GPU")
        tenants.order(1, "go")
        wait_until(lambda: tenants.lent(0) == 0, "the owner has its share back")
        tenants.come_to((30, 70), tolerance=0.2)


def test_a_strict_share_alone_gets_no_more_than_its_own(tenants: Tenants) -> None:
    with competing(tenants, [30], ["k_1ms"], ComputePolicy.STRICT):

        def part() -> float:
            before, start_s = tenants.used_ns()[0], time.monotonic()
            wait_s(2 * WINDOW_S)
            used = (tenants.used_ns()[0] - before) / (time.monotonic() - start_s) / 1e9
            assert used < 0.34
            return used

        wait_until(lambda: part() > 0.2, "it gets what is its own")


def test_high_priority_gets_the_idle_time_first(tenants: Tenants) -> None:
    with competing(tenants, [20, 20], ["k_1ms", "k_1ms"], ComputePolicy.FAIR, high=1):
        wait_until(lambda: tenants.lent(1) > 0, "high priority is lent what nobody has reserved")
        tenants.come_to((20, 80), tolerance=0.3)


def test_without_a_reservation_a_share_makes_way(tenants: Tenants) -> None:
    with competing(tenants, [0, 60], ["k_1ms"], ComputePolicy.STRICT):
        assert tenants.parts() == [100]
        wait_until(lambda: tenants.lent(0) == 100_000, "beside an owner it is on loan")
        tenants.start("k_1ms")
        wait_until(lambda: tenants.lent(0) == 40_000, "the share without a reservation gets a number")
        tenants.come_to((40, 60), tolerance=0.2)
