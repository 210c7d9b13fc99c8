# SPDX-License-Identifier: Apache-2.0
"""When a replica rests between its writes of a ledger."""

from aliquot_webhook.pace import Pace


def rests(pace: Pace, *, writes: int, pause_s: float = 0.0, is_shared: bool = False) -> list[float]:
    """The rest after each of these writes of 10 ms; the next one begins after it, and after `pause_s`."""
    found, now_s = [], 100.0
    for _ in range(writes):
        pace.wrote(began_s=now_s, ended_s=now_s + 0.01, is_shared=is_shared)
        found.append(round(max(0.0, pace.rests_until_s - now_s - 0.01), 6))
        now_s += 0.01 + found[-1] + pause_s
    return found


def test_who_writes_in_a_row_rests_for_four_writes_after_every_eighth() -> None:
    assert rests(Pace(), writes=24) == ([0.0] * 7 + [0.04]) * 3


def test_pauses_that_come_by_themselves_are_rest_enough() -> None:
    assert rests(Pace(), writes=100, pause_s=0.005) == [0.0] * 100


def test_among_several_there_is_rest_after_each_write() -> None:
    assert all(0.01 <= rest_s <= 0.03 for rest_s in rests(Pace(), writes=50, is_shared=True))


def test_no_rest_is_long() -> None:
    pace = Pace()
    pace.wrote(began_s=100, ended_s=104, is_shared=True)
    assert pace.rests_until_s <= 104.1 + 1e-9
