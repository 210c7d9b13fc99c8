# SPDX-License-Identifier: Apache-2.0
"""The cost factor, and who escapes."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent.correction import LEAST_PPM, MOST_PPM, Correction, Escape
from aliquot_agent.region import COST_FACTOR_ONE

PART = st.floats(0, 1)


def after(seconds: int, *, used: float, granted: float, factor: float = 1.0, trusted: bool = True) -> float:
    """The factor after so many seconds of the same."""
    correction = Correction(factor_ppm=int(factor * COST_FACTOR_ONE))
    for _ in range(seconds):
        correction.add(used_s=used, granted_s=granted, span_s=1.0, trusted=trusted)
    return correction.factor_ppm / COST_FACTOR_ONE


def test_the_factor_follows_what_was_used() -> None:
    assert after(10, used=0.3, granted=0.6) == pytest.approx(0.5, rel=0.02)
    assert after(10, used=0.3, granted=0.2) == pytest.approx(1.5, rel=0.02)


def test_a_change_is_followed_within_five_seconds() -> None:
    assert after(5, used=0.3, granted=0.6, factor=1.0) == pytest.approx(0.5, rel=0.1)


def test_whole_percents_are_smoothed() -> None:
    correction = Correction(factor_ppm=COST_FACTOR_ONE)
    seen = []
    for second in range(60):
        correction.add(used_s=(0.12, 0.13)[second % 2], granted_s=0.125, span_s=1.0)
        seen.append(correction.factor_ppm / COST_FACTOR_ONE)
    assert max(abs(factor - 1) for factor in seen[10:]) < 0.02


def test_an_idle_share_keeps_its_factor() -> None:
    assert after(100, used=0.0, granted=0.0, factor=0.6) == 0.6


def test_a_share_of_less_than_a_step_keeps_its_factor() -> None:
    assert after(100, used=0.0, granted=0.009, factor=0.6) == 0.6


def test_nothing_is_cheaper_for_one_who_escapes() -> None:
    assert after(10, used=0.1, granted=0.9, trusted=False) == 1.0
    assert after(10, used=0.9, granted=0.3, trusted=False) == pytest.approx(3, rel=0.05)


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(PART, st.floats(-1e9, 1e9), st.floats(0.01, 1)), max_size=20),
)
def test_the_factor_stays_within_bounds(start: int, spans: list[tuple[float, float, float]]) -> None:
    correction = Correction(factor_ppm=start)
    for used_s, granted_s, span_s in spans:
        correction.add(used_s=used_s, granted_s=granted_s, span_s=span_s)
        assert LEAST_PPM <= correction.factor_ppm <= MOST_PPM


def watched(second: Callable[[int], tuple[float, float]], seconds: int) -> Escape:
    escape = Escape()
    for number in range(seconds):
        used_s, allowed_s = second(number)
        escape.add(used_s=used_s, allowed_s=allowed_s, span_s=1.0)
    return escape


def test_who_uses_far_more_than_it_may_escapes() -> None:
    assert "use 90 % of the GPU's time, and may use 30 %" in watched(lambda _: (0.9, 0.3), 10).words


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda _: (0.35, 0.3), id="a little above"),
        pytest.param(lambda number: (0.3 if number % 4 else 0.9, 0.3), id="a burst now and then"),
        pytest.param(lambda _: (1.0, 1.0), id="all of it, lent"),
        pytest.param(lambda _: (0.02, 0.0), id="a step of nothing"),
    ],
)
def test_who_stays_near_its_share_does_not(second: Callable[[int], tuple[float, float]]) -> None:
    assert watched(second, 60).words == ""


def test_a_first_second_tells_nothing() -> None:
    assert watched(lambda _: (1.0, 0.1), 2).words == ""


def test_an_escape_ends() -> None:
    escape = watched(lambda _: (0.9, 0.3), 30)
    for _ in range(30):
        escape.add(used_s=0.3, allowed_s=0.3, span_s=1.0)
    assert escape.words == ""
