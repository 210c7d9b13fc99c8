# SPDX-License-Identifier: Apache-2.0
"""What a ledger's words say about a share's need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent.demand import IDLE_NS, Demand
from aliquot_agent.lending import WHOLE
from aliquot_agent.region import COST_FACTOR_ONE, Pace

MS = 1_000_000
NOW = 10_000_000 * MS


def seen(now_ns: int = NOW, **words: int) -> Demand:
    demand = Demand()
    demand.observe(Pace(**words), now_ns=now_ns)
    return demand


def test_a_share_that_never_launched_is_idle() -> None:
    assert not seen().active
    assert seen().wants(factor_ppm=COST_FACTOR_ONE) == 0


def test_a_share_is_active_until_some_time_after_its_last_launch() -> None:
    assert seen(last_launch_ns=NOW - IDLE_NS + 1).active
    assert not seen(last_launch_ns=NOW - IDLE_NS).active


def test_a_share_that_has_spent_its_future_is_active() -> None:
    assert seen(last_launch_ns=NOW - 2 * IDLE_NS, tat_ns=NOW + 1).active


def test_a_share_that_is_held_wants_everything() -> None:
    words = {"last_launch_ns": NOW - 10 * MS, "waiting_until_ns": NOW - 100 * MS}
    assert seen(**words).wants(factor_ppm=COST_FACTOR_ONE) == WHOLE


def grow(parts: list[float], *, step_ms: int = 50) -> Demand:
    """A share that is granted these parts of the time, one step after the other."""
    demand = Demand()
    granted = 0
    demand.observe(Pace(granted_ns=granted, last_launch_ns=NOW), now_ns=NOW)
    for number, part in enumerate(parts, 1):
        granted += int(part * step_ms * MS)
        now_ns = NOW + number * step_ms * MS
        demand.observe(Pace(granted_ns=granted, last_launch_ns=now_ns), now_ns=now_ns)
    return demand


def test_a_share_that_is_not_held_wants_a_little_more_than_it_takes() -> None:
    assert 35_000 < grow([0.3] * 40).wants(factor_ppm=COST_FACTOR_ONE) < 45_000
    assert grow([0.3] * 40).wants(factor_ppm=COST_FACTOR_ONE // 2) < 25_000


def test_what_was_granted_at_a_time_is_told_between_two_looks() -> None:
    demand = grow([0.5] * 40)
    for ms in (0, 133, 777, 1999):
        assert demand.granted_at(NOW + ms * MS) == pytest.approx(ms * MS * 0.5, abs=5)
    assert demand.granted_at(NOW + 5000 * MS) == 1000 * MS
    assert demand.granted_at(NOW - 5000 * MS) == 0


WORD = st.one_of(st.integers(0, 2**64 - 1), st.integers(NOW - 5000 * MS, NOW + 5000 * MS))


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=20), st.integers(0, 10**7))
def test_no_ledger_is_too_strange(paces: list[tuple[int, int, int, int]], factor_ppm: int) -> None:
    demand = Demand()
    for number, (tat, granted, launched, waiting) in enumerate(paces):
        now_ns = NOW + number * 60 * MS
        demand.observe(Pace(tat, granted, 0, launched, waiting), now_ns=now_ns)
        assert 0 <= demand.wants(factor_ppm=factor_ppm) <= WHOLE
        demand.granted_at(now_ns - 1000 * MS)
