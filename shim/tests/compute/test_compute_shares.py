# SPDX-License-Identifier: Apache-2.0
"""Programs that keep their GPU busy get their share of its time, by the simulated driver's own books.

Upper bounds are tight, as a loaded machine only makes a program slower. Exact figures: `make bench-compute`.
"""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shim.tests.compute.nodes import STEP_S, Node, Share

ABOVE: Final = 4
"""Points that a share may pass its number by in windows of a second or two."""
DEADLINE_S: Final = 20


def settled(share: Share) -> None:
    """Until the first burst is spent: a launch waits."""
    wait_until(lambda: share.word("waiting_until_ns") > time.monotonic_ns())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(STEP_S / 10)


def is_held(percent: float, share: float) -> bool:
    """At its share: not above, and not so far below that a busy machine would not explain it."""
    return 0.5 * share - 1 <= percent <= share + ABOVE


@pytest.mark.parametrize(
    ("work", "percent"),
    [
        ("spin_20us", 10),
        ("spin_20us", 70),
        ("spin_1ms", 30),
        ("spin_50ms", 40),
        ("graph:spin_20us*50", 30),
        ("spin_20us,spin_3ms,spin_20ms", 50),
        ("spin_1ms+ex,spin_1ms+old,spin_1ms+coop,spin_1ms+thread", 40),
    ],
)
def test_alone(gpu: Node, work: str, percent: int) -> None:
    share = gpu.share("a", percent)
    tenant = gpu.start("a", work)
    settled(share)
    used = gpu.measure(2)["a"]
    # One of the longest may have begun in the window and run on, or before it.
    assert is_held(used, percent), used
    assert tenant.end() == 0


def test_the_first_second_is_held_too(gpu: Node) -> None:
    gpu.share("a", 10)
    tenant = gpu.start("a", "spin_50ms")
    assert gpu.measure(1)["a"] <= 20
    assert tenant.end() == 0


def test_processes_and_threads_of_a_share_get_it_together(gpu: Node) -> None:
    share = gpu.share("a", 30)
    tenants = [gpu.start("a", "spin_1ms", "3"), gpu.start("a", "spin_1ms")]
    settled(share)
    used = gpu.measure(2)["a"]
    assert is_held(used, 30), used
    assert [tenant.end() for tenant in tenants] == [0, 0]


def test_shares_of_two_gpus_are_held_apart(tmp_path: Path, tenant: str) -> None:
    with Node(folder=tmp_path, program=tenant, gpu="h100:2") as node:
        share = node.share("a", 20)
        other = node.share_of_another_gpu("a", 60)
        running = node.start("a", "spin_1ms", "2", "2")
        settled(share)
        before = [each.word("granted_ns") for each in (share, other)]
        used = node.measure(2)["a"]
        granted = [each.word("granted_ns") - ns for each, ns in zip((share, other), before, strict=True)]
        assert is_held(used, 80), used
        assert granted[1] > 2 * granted[0]
        assert running.end() == 0


def test_a_share_without_a_number_is_not_held_and_not_counted(gpu: Node) -> None:
    share = gpu.share("a", 0)
    tenant = gpu.start("a", "spin_1ms")
    assert gpu.measure(1)["a"] > 60
    words = (
        "tat_ns",
        "granted_ns",
        "throttled_ns",
        "last_launch_ns",
        "waiting_until_ns",
        "paced_millipercent",
    )
    assert [share.word(name) for name in words] == [0] * len(words)
    assert tenant.end() == 0


def test_a_whole_gpu_is_counted_and_never_held(gpu: Node) -> None:
    share = gpu.share("a", 0)
    share.lend(100, seconds=60)
    tenant = gpu.start("a", "spin_1ms")
    # Before the first price is known, nothing is counted but a guess.
    gpu.measure(0.5)
    before = share.word("granted_ns")
    used = gpu.measure(1)["a"]
    assert used > 60
    assert (share.word("granted_ns") - before) / 1e7 == pytest.approx(used, rel=0.3)
    assert share.word("throttled_ns") == 0
    assert tenant.end() == 0


def test_a_change_of_the_share_is_seen_by_a_launch_that_waits(gpu: Node) -> None:
    share = gpu.share("a", 1)
    tenant = gpu.start("a", "spin_50ms")  # waits for 5 s
    settled(share)
    share.cores(60)
    before = tenant.launches()
    wait_until(lambda: tenant.launches() > before + 2)
    used = gpu.measure(2)["a"]
    assert is_held(used, 60), used
    share.cores(10)
    gpu.measure(1)
    used = gpu.measure(2)["a"]
    assert is_held(used, 10), used
    assert tenant.end() == 0


def test_what_is_lent_ends_by_itself(gpu: Node) -> None:
    share = gpu.share("a", 20)
    tenant = gpu.start("a", "spin_1ms")
    settled(share)
    share.lend(60, seconds=1.5)
    lent = gpu.measure(1.2)["a"]
    gpu.measure(0.5)
    used = gpu.measure(1.5)["a"]
    assert lent > 30, lent
    assert is_held(used, 20), used
    assert tenant.end() == 0


def test_on_borrowed_time_little_is_in_flight(gpu: Node) -> None:
    share = gpu.share("a", 30)
    share.lend(70, seconds=60)
    tenant = gpu.start("a", "spin_1ms")  # would have 512 ms in flight
    wait_until(lambda: tenant.launches() > 1000)
    before_ns = gpu.used_ns()["a"]
    in_flight_ms = tenant.launches() - before_ns / 1e6
    assert in_flight_ms < 200, in_flight_ms
    assert share.word("throttled_ns") == 0, "nobody holds it back: it has the GPU"
    assert tenant.end() == 0


def test_an_idle_share_saves_nothing_up(gpu: Node) -> None:
    share = gpu.share("a", 20)
    tenant = gpu.start("a", "spin_1ms")
    settled(share)
    tenant.order("pause")
    wait_until(lambda: share.word("waiting_until_ns") < time.monotonic_ns())
    gpu.measure(1.5)
    tenant.order("go")
    used = gpu.measure(1)["a"]
    assert is_held(used, 20 + 6), used  # 50 ms of the clock, half a millisecond, and what was queued
    assert tenant.end() == 0


def test_a_small_share_never_waits_long(gpu: Node) -> None:
    gpu.share("a", 1)
    tenant = gpu.start("a", "spin_5ms")
    begin, count, longest = time.monotonic(), tenant.launches(), 0.0
    last = begin
    while time.monotonic() - begin < 4:
        now, seen = time.monotonic(), tenant.launches()
        if seen > count:
            longest, last, count = max(longest, now - last), now, seen
    assert max(longest, time.monotonic() - last) < 1
    assert tenant.end() == 0


@pytest.mark.parametrize("tat_ns", [2**64 - 1, 2**63, 1], ids=["largest", "large", "small"])
def test_a_spoilt_word_stops_nobody(gpu: Node, tat_ns: int) -> None:
    share = gpu.share("a", 30)
    tenant = gpu.start("a", "spin_1ms")
    settled(share)
    share.set_word("tat_ns", tat_ns)
    share.set_word("paced_millipercent", tat_ns)
    before = tenant.launches()
    wait_until(lambda: tenant.launches() > before + 50)
    assert tenant.end() == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_process_stopped_or_killed_anywhere_leaves_the_share_to_the_others(gpu: Node, seed: int) -> None:
    dice = random.Random(seed)
    share = gpu.share("a", 40)
    other = gpu.start("a", "spin_20us", "4")
    tenant = gpu.start("a", "spin_1ms")
    settled(share)
    time.sleep(dice.random() / 10)
    other.signal(signal.SIGSTOP)
    gpu.measure(0.3)  # what it had queued runs on
    before = tenant.launches()
    used = gpu.measure(1)["a"]
    assert is_held(used, 40), used
    assert tenant.launches() > before
    other.kill()
    gpu.measure(0.3)
    used = gpu.measure(1)["a"]
    assert is_held(used, 40), used
    assert tenant.end() == 0


def test_the_ledger_tells_when_a_launch_waits(gpu: Node) -> None:
    share = gpu.share("a", 5)
    tenant = gpu.start("a", "spin_5ms")
    settled(share)
    held = time.monotonic_ns()
    wait_until(lambda: share.word("last_launch_ns") > held)
    throttled = share.word("throttled_ns")
    wait_until(lambda: share.word("throttled_ns") > throttled)
    tenant.kill()
    wait_until(lambda: share.word("waiting_until_ns") < time.monotonic_ns() - 100_000_000)
