# SPDX-License-Identifier: Apache-2.0
import pytest

from aliquot_agent import order
from aliquot_agent.nodepolicy import Order
from aliquot_agent.order import Arranger

FOUND = ("a", "b", "c")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(Order.AS_FOUND, ("a", "b", "c"), id="as found"),
        pytest.param(Order.PACKED, ("b", "c", "a"), id="packed"),
        pytest.param(Order.SPREAD, ("a", "c", "b"), id="spread"),
    ],
)
def test_the_order_is_by_what_is_taken(wanted: Order, expected: tuple[str, ...]) -> None:
    taken = {"a": 0.1, "b": 0.9, "c": 0.5}
    assert order.arrange(FOUND, before=(), taken=taken, order=wanted) == expected


def test_a_small_difference_changes_nothing() -> None:
    taken = {"a": 0.55, "b": 0.5, "c": 0.5}
    assert order.arrange(FOUND, before=("c", "b", "a"), taken=taken, order=Order.PACKED) == ("c", "b", "a")


def test_a_gpu_that_is_new_or_gone_is_no_reason_to_move_others() -> None:
    before = ("c", "gone", "a")
    assert order.arrange(FOUND, before=before, taken={}, order=Order.SPREAD) == ("c", "a", "b")


def test_the_order_changes_twice_a_minute_at_most() -> None:
    now_s = 100.0
    arranger = Arranger(monotonic_s=lambda: now_s)

    def after(seconds: float, **taken: float) -> tuple[str, ...]:
        nonlocal now_s
        now_s += seconds
        return arranger.arrange(FOUND, taken=taken, order=Order.SPREAD)

    assert after(0) == ("a", "b", "c")
    assert after(1, a=0.5) == ("b", "c", "a")
    assert after(1, b=0.5) == ("b", "c", "a")
    assert after(30, b=0.5) == ("c", "a", "b")


def test_another_policy_counts_at_once() -> None:
    arranger = Arranger(monotonic_s=lambda: 0.0)
    assert arranger.arrange(FOUND, taken={"a": 1.0}, order=Order.SPREAD) == ("b", "c", "a")
    assert arranger.arrange(FOUND, taken={"a": 1.0}, order=Order.AS_FOUND) == ("a", "b", "c")


def test_a_device_that_is_gone_is_never_answered() -> None:
    arranger = Arranger(monotonic_s=lambda: 0.0)
    arranger.arrange(FOUND, taken={"a": 1.0}, order=Order.SPREAD)
    assert arranger.arrange(("a", "c"), taken={"c": 1.0}, order=Order.SPREAD) == ("a", "c")
