# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from aliquot_cli.cards import Card, cards
from aliquot_cli.placing import Short, consumption, place, wish_of
from tests.unit.cli.kit import MIB, Object, allocated, device, request, resource_slice

CLASSES = {"gpu.aliquot.dev": ('device.driver == "gpu.aliquot.dev"',)}


def node(*devices: Object, claims: tuple[Object, ...] = ()) -> tuple[Card, ...]:
    return cards([resource_slice("n1", *devices)], claims)


def wish(*requests: Object, **devices: object) -> object:
    return {"devices": {"requests": list(requests), **devices}}


@pytest.mark.parametrize(
    ("wanted", "short"),
    [
        pytest.param({"memory": "2578Mi"}, None, id="what is left"),
        pytest.param({"memory": "2579Mi"}, Short.MEMORY, id="1 MiB more"),
        pytest.param({"memory": "1Mi", "cores": "70"}, None, id="cores that are left"),
        pytest.param({"memory": "1Mi", "cores": "71"}, Short.CORES, id="one core more"),
        pytest.param({"memory": "1Mi", "shares": "16"}, Short.SHARES, id="all places"),
        pytest.param({}, Short.WHOLE, id="a whole GPU"),
        pytest.param({"memory": "99999Mi"}, Short.MEMORY, id="more than it has"),
    ],
)
def test_what_is_short_on_a_shared_gpu_is_told(wanted: dict[str, Any], short: Short | None) -> None:
    held = allocated("a", memory="20000Mi", cores="30", shares="1")
    placement = place([wish_of(wish(request(**wanted)))], node(device(), claims=(held,)), CLASSES)
    [look] = placement.looks
    assert look.short is short
    assert placement.fits is (short is None)


def test_a_tainted_gpu_serves_who_tolerates_it() -> None:
    taint = {"key": "gpu.aliquot.dev/unhealthy", "value": "ecc", "effect": "NoSchedule"}
    found = node(device(taints=[taint]))
    refused = place([wish_of(wish(request(memory="1Gi")))], found, CLASSES)
    assert [look.short for look in refused.looks] == [Short.TAINT]
    tolerant = request(memory="1Gi")
    tolerant["exactly"]["tolerations"] = [{"key": "gpu.aliquot.dev/unhealthy", "operator": "Exists"}]
    assert place([wish_of(wish(tolerant))], found, CLASSES).fits


def test_a_taint_without_effect_keeps_nobody_away() -> None:
    found = node(device(taints=[{"key": "a", "value": "b", "effect": "None"}]))
    assert place([wish_of(wish(request(memory="1Gi")))], found, CLASSES).fits


def test_alternatives_are_tried_in_turn() -> None:
    first, second = request(memory="1Gi", selectors=("false",)), request(memory="1Gi")
    either = {"name": "main", "firstAvailable": [first["exactly"], second["exactly"]]}
    placement = place([wish_of(wish(either))], node(device()), CLASSES)
    assert placement.fits
    assert [look.short for look in placement.looks] == [None]


@pytest.mark.parametrize(
    ("requests", "devices", "fits"),
    [
        pytest.param([request(count=2, memory="1Gi")], {}, True, id="two of two"),
        pytest.param([request(count=3, memory="1Gi")], {}, False, id="three of two"),
        pytest.param([request("a", memory="20Gi"), request("b", memory="20Gi")], {}, True, id="one on each"),
        pytest.param([request(each, memory="20Gi") for each in "abc"], {}, False, id="one too many"),
        pytest.param(
            [request(each, memory="1Gi") for each in "abc"],
            {"constraints": [{"requests": ["a", "b"], "distinctAttribute": "gpu.aliquot.dev/uuid"}]},
            True,
            id="two apart",
        ),
        pytest.param(
            [request(each, memory="1Gi") for each in "abc"],
            {"constraints": [{"distinctAttribute": "gpu.aliquot.dev/uuid"}]},
            False,
            id="three apart on two",
        ),
        pytest.param(
            [request(each, memory="12Gi") for each in "ab"],
            {"constraints": [{"matchAttribute": "gpu.aliquot.dev/uuid"}]},
            False,
            id="together on one that is too small",
        ),
        pytest.param(
            [request(each, memory="1Gi") for each in "ab"],
            {"constraints": [{"matchAttribute": "resource.kubernetes.io/numaNode"}]},
            False,
            id="agree about what none has",
        ),
    ],
)
def test_requests_fit_together_or_not(requests: list[Object], devices: dict[str, object], fits: bool) -> None:
    found = node(device("gpu-1"), device("gpu-2"))
    assert place([wish_of(wish(*requests, **devices))], found, CLASSES).fits is fits


def test_a_search_without_end_is_given_up_and_said() -> None:
    gpus = [device(f"gpu-{number}") for number in range(8)]
    held = [allocated(f"c{number}", device=f"gpu-{number}", memory="1Mi", cores="1") for number in range(8)]
    small = [request(f"r{number}", memory=f"{2000 + number}Mi", cores="13") for number in range(8)]
    placement = place(
        [wish_of(wish(*small, request("last", memory="1Mi", cores="100")))],
        node(*gpus, claims=tuple(held)),
        CLASSES,
    )
    assert (placement.fits, placement.complete) == (False, False)
    assert {look.short for look in placement.looks if look.request == "last"} == {Short.CORES}


@pytest.mark.parametrize(
    ("policy", "wanted", "consumed"),
    [
        ({"default": "4Gi"}, None, 4 << 30),
        ({"default": "0", "validRange": {"min": "1Gi", "step": "1Gi"}}, 0, 1 << 30),
        ({"default": "0", "validRange": {"min": "1Gi", "step": "1Gi"}}, 1500 * MIB, 2 << 30),
        ({"default": "0", "validRange": {"min": "1Gi", "step": "1Gi"}}, 81 << 30, None),
        ({"default": "0", "validRange": {"min": "0", "step": "1", "max": "5"}}, 6, None),
        ({"default": "10Gi", "validValues": ["10Gi", "40Gi", "80Gi"]}, 11 << 30, 40 << 30),
        ({"default": "10Gi", "validValues": ["10Gi", "40Gi", "80Gi"]}, 81 << 30, None),
        (None, 1, 80 << 30),
    ],
)
def test_amounts_are_rounded_by_the_policy(
    policy: Object | None, wanted: int | None, consumed: int | None
) -> None:
    capacity = {"value": "80Gi"} | ({"requestPolicy": policy} if policy else {})
    [card] = cards([resource_slice("n1", {"name": "g", "capacity": {"memory": capacity}})], [])
    assert consumption(card, "memory", wanted) == consumed


def test_only_the_newest_generation_counts() -> None:
    old, new = (
        resource_slice("n1", device("gpu-1"), generation=1),
        resource_slice("n1", device("gpu-2"), generation=2),
    )
    assert [card.uuid for card in cards([new, old], [])] == ["GPU-2"]


def test_a_gpu_that_left_its_slice_is_shown_with_what_it_holds() -> None:
    [card] = cards([resource_slice("n1")], [allocated("a", memory="1Gi")])
    assert (card.node, card.published, card.taken("memory")) == ("n1", {}, 1 << 30)
    assert not place([wish_of(wish(request(memory="1Mi")))], [card], CLASSES).fits


def test_slices_of_other_drivers_are_none_of_ours() -> None:
    assert cards([resource_slice("n1", device(), driver="gpu.nvidia.com")], []) == ()
