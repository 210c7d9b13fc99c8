# SPDX-License-Identifier: Apache-2.0
"""Who gets idle time: the rules of docs/compute.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent.lending import LEAST, WHOLE, Seat, contended, divide, lend
from aliquot_api.config import ComputePolicy, Priority

FAIR, STRICT, OFF = ComputePolicy.FAIR, ComputePolicy.STRICT, ComputePolicy.OFF
HIGH, LOW = Priority.HIGH, Priority.LOW


def idle(percent: int, policy: ComputePolicy = FAIR, priority: Priority = LOW) -> Seat:
    return Seat(percent * 1000, policy, priority)


def busy(
    percent: int, policy: ComputePolicy = FAIR, priority: Priority = LOW, *, wants: int | None = None
) -> Seat:
    """Launches within its share."""
    return Seat(
        percent * 1000, policy, priority, active=True, wants=1000 * (percent if wants is None else wants)
    )


def held(percent: int, policy: ComputePolicy = FAIR, priority: Priority = LOW) -> Seat:
    """Launches, and could use all of the GPU."""
    return Seat(percent * 1000, policy, priority, active=True, wants=WHOLE)


@pytest.mark.parametrize(
    ("seats", "lent"),
    [
        pytest.param([held(30), idle(70)], [70, 0], id="an idle neighbour's share"),
        pytest.param([held(30)], [70], id="what nobody has reserved"),
        pytest.param([held(30), held(70)], [0, 0], id="nothing where nobody is idle"),
        pytest.param([held(30), busy(70)], [0, 0], id="nothing of one who launches"),
        pytest.param([busy(30), idle(70)], [0, 0], id="nothing to one who has enough"),
        pytest.param([held(10), held(30), idle(60)], [15, 45, 0], id="in proportion to the shares"),
        pytest.param(
            [busy(10, wants=15), held(30), idle(60)], [5, 55, 0], id="what one leaves the other gets"
        ),
        pytest.param([held(30, STRICT), idle(70)], [0, 0], id="nothing to a strict one"),
        pytest.param([held(30), idle(70, STRICT)], [0, 0], id="nothing of a strict one"),
        pytest.param([held(30), idle(50, OFF)], [20, 0], id="nothing of one that is not held"),
        pytest.param([held(10), held(30, priority=HIGH), idle(60)], [0, 60, 0], id="high priority first"),
        pytest.param(
            [held(10), busy(30, priority=HIGH, wants=40), idle(60)], [50, 10, 0], id="then the others"
        ),
        pytest.param([held(10), idle(30, priority=HIGH)], [90, 0], id="of an idle one of high priority too"),
        pytest.param([held(0)], [0], id="one without a reservation is free alone"),
        pytest.param([held(0), held(0)], [0, 0], id="and among such"),
        pytest.param([held(0), idle(80)], [100, 0], id="and has all of the GPU on loan beside an idle one"),
        pytest.param([idle(0), idle(80)], [100, 0], id="even before it launches, as it is not counted yet"),
        pytest.param([held(0), idle(80, OFF)], [0, 0], id="but nobody is held for one that is not"),
        pytest.param([held(0, OFF), idle(80)], [0, 0], id="nor one that is not itself"),
        pytest.param([held(0), busy(80)], [20, 0], id="and gets what nobody has reserved"),
        pytest.param([held(0), busy(100)], [1, 0], id="but a little at least"),
        pytest.param([idle(0), busy(80)], [1, 0], id="even before it launches"),
        pytest.param([held(0), held(0), busy(80)], [10, 10, 0], id="equal parts without reservations"),
        pytest.param([held(0), held(30), idle(70)], [17.5, 52.5, 0], id="as much as one who has reserved 10"),
        pytest.param([held(0, STRICT), busy(80)], [20, 0], id="a strict one without a reservation"),
        pytest.param([held(0, OFF), busy(80)], [0, 0], id="one that is not held is not held"),
    ],
)
def test_lends(seats: list[Seat], lent: list[float]) -> None:
    found = lend(dict(enumerate(seats)))
    assert [found.get(number, 0) / 1000 for number in range(len(seats))] == lent


SEATS = st.lists(
    st.builds(
        Seat,
        reserved=st.integers(0, 100).map(lambda percent: percent * 1000),
        policy=st.sampled_from(ComputePolicy),
        priority=st.sampled_from(Priority),
        active=st.booleans(),
        wants=st.integers(0, WHOLE),
    ),
    max_size=16,
).map(lambda seats: dict(enumerate(seats)))


@given(SEATS)
def test_never_lends_what_somebody_uses(seats: dict[int, Seat]) -> None:
    lent = lend(seats)
    least = sum(LEAST for seat in seats.values() if not seat.reserved)
    in_use = sum(seat.reserved for seat in seats.values() if seat.active or seat.policy is not FAIR)
    unheld = 0 if contended(seats) else sum(WHOLE for seat in seats.values() if not seat.reserved)
    assert sum(lent.values()) <= max(0, WHOLE - in_use) + least + unheld


@given(SEATS)
def test_nobody_gets_more_than_it_wants_or_may_have(seats: dict[int, Seat]) -> None:
    for key, part in lend(seats).items():
        seat = seats[key]
        assert seat.policy is not OFF
        if seat.reserved:
            assert seat.policy is FAIR
            assert seat.active
            assert seat.reserved + part <= seat.wants
        else:
            assert part <= max(seat.wants, LEAST) or not contended(seats)


@given(SEATS)
def test_no_low_priority_is_lent_what_a_high_one_wants(seats: dict[int, Seat]) -> None:
    lent = lend(seats)
    starved = any(
        seat.priority is HIGH
        and seat.policy is FAIR
        and seat.active
        and seat.reserved + lent.get(key, 0) < seat.wants
        for key, seat in seats.items()
        if seat.reserved
    )
    low = sum(part for key, part in lent.items() if seats[key].priority is LOW and seats[key].reserved)
    assert not (starved and low > len(seats))  # of rounding


@given(
    st.integers(0, WHOLE),
    st.lists(st.tuples(st.integers(1, WHOLE), st.integers(1, WHOLE)), max_size=8),
)
def test_divides_all_there_is_room_for(amount: int, takers: list[tuple[int, int]]) -> None:
    asking = list(range(len(takers)))
    rooms, weights = ({key: taker[part] for key, taker in enumerate(takers)} for part in (0, 1))
    parts = divide(amount, asking, rooms, weights)
    whole = min(amount, sum(rooms.values()))
    assert all(0 <= parts[key] <= rooms[key] for key in asking)
    assert whole - len(takers) <= sum(parts.values()) <= whole
