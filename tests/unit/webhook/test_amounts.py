# SPDX-License-Identifier: Apache-2.0
"""What a claim counts as, before anybody knows which GPU it gets."""

from typing import Any

import pytest

from aliquot_api.errors import InvalidInput
from aliquot_api.quantity import MIB
from aliquot_webhook.amounts import Amounts, of_allocation, of_claim, uses
from tests.unit.webhook.offices import CLASSES

WHOLE = 80_000 * MIB


def ask(device_class: str = "gpu.aliquot.dev", *, count: int = 1, **capacity: str) -> dict[str, Any]:
    return {
        "deviceClassName": device_class,
        "allocationMode": "ExactCount",
        "count": count,
        "capacity": {"requests": capacity},
    }


def spec(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": f"r{index}", **each} for index, each in enumerate(requests)]}}


def exactly(**rest: Any) -> dict[str, Any]:
    return {"exactly": ask(**rest)}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param([exactly(memory="8000Mi")], Amounts(8000 * MIB, 0, 1, 1), id="a share"),
        pytest.param([exactly(memory="1")], Amounts(MIB, 0, 1, 1), id="rounded up"),
        pytest.param([exactly(cores="100")], Amounts(WHOLE, 100, 1, 1), id="a whole card is the largest"),
        pytest.param(
            [exactly(memory="1Gi", cores="30", shares="16", count=3)],
            Amounts(3 * 1024 * MIB, 90, 48, 3),
            id="each card",
        ),
        pytest.param(
            [exactly(memory="1Mi"), exactly(memory="2Mi", cores="5")], Amounts(3 * MIB, 5, 2, 2), id="the sum"
        ),
        pytest.param(
            [{"firstAvailable": [ask(memory="1Mi", cores="90"), ask(memory="9Mi"), ask(shares="4")]}],
            Amounts(WHOLE, 90, 4, 1),
            id="of alternatives the most of each thing",
        ),
        pytest.param(
            [{"exactly": {**ask(memory="1Mi"), "allocationMode": "All"}}],
            Amounts(32 * MIB, 0, 32, 32),
            id="all there are",
        ),
        pytest.param([exactly(device_class="nic.example", memory="1Mi")], Amounts(), id="not ours"),
        pytest.param([{"exactly": {**ask(), "adminAccess": True}}], Amounts(), id="takes nothing"),
        pytest.param([{"exactly": 5}, {}, {"firstAvailable": "x"}], Amounts(), id="nonsense"),
    ],
)
def test_the_most_that_a_claim_can_take(requests: list[dict[str, Any]], expected: Amounts) -> None:
    assert of_claim(spec(*requests), classes=CLASSES, whole_bytes=WHOLE) == expected


def test_a_resize_counts_where_it_is_more() -> None:
    given = spec(exactly(memory="100Mi", count=2), exactly(memory="50Mi"))
    resized = of_claim(given, classes=CLASSES, whole_bytes=None, memory={"r0": 200 * MIB, "r1": 10 * MIB})
    assert resized.memory == (2 * 200 + 50) * MIB


def test_a_whole_card_of_unknown_size_cannot_be_counted() -> None:
    with pytest.raises(InvalidInput, match="no GPU is known yet"):
        of_claim(spec(exactly()), classes=CLASSES, whole_bytes=None)


def test_whether_a_claim_is_for_our_gpus() -> None:
    assert uses(spec(exactly()), classes=CLASSES)
    assert uses(spec({"firstAvailable": [ask("nic.example"), ask("mig.aliquot.dev")]}), classes=CLASSES)
    assert not uses(spec(exactly(device_class="nic.example")), classes=CLASSES)
    assert not uses(None, classes=CLASSES)


def test_what_an_allocation_has_taken() -> None:
    results = [
        {"driver": "gpu.aliquot.dev", "consumedCapacity": {"memory": "1Gi", "cores": "30", "shares": "1"}},
        {"driver": "gpu.aliquot.dev", "consumedCapacity": {"memory": "1Gi"}, "adminAccess": True},
        {"driver": "nic.example", "consumedCapacity": {"memory": "1Gi"}},
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert of_allocation(claim) == Amounts(1024 * MIB, 30, 1, 1)
    assert of_allocation({}) == Amounts()
