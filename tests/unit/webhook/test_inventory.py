# SPDX-License-Identifier: Apache-2.0
"""The inventory that a watch on slices keeps."""

from dataclasses import replace
from typing import Any

import pytest

from aliquot_webhook.inventory import Inventory, LiveInventory, of_places
from tests.unit.webhook.kit import H100, L4, inventory, resource_slice


def test_it_knows_the_largest_gpu_and_what_one_node_has_of_a_size() -> None:
    known = inventory([L4, L4, L4], [H100, L4], [L4, L4, L4])

    assert known.largest == H100
    assert known.most_on_one_node(0) == 3
    assert known.most_on_one_node(L4.memory_bytes + 1) == 1
    assert known.most_on_one_node(H100.memory_bytes + 1) == 0
    assert len(known.nodes) == 2


def test_without_slices_it_knows_nothing() -> None:
    assert Inventory().largest is None
    assert inventory([]) == Inventory()
    assert Inventory().most_gpus == 0


def test_what_is_left_of_it() -> None:
    known = inventory([L4, H100], [H100, H100])
    left = known.only(lambda gpu: gpu.product == H100.product)

    assert left.gpus == ((H100, 3),)
    assert left.nodes == ((H100,), (H100, H100))
    assert left.most_on_one_node(0) == left.most_gpus == 2
    assert not known.only(lambda gpu: False).gpus


def test_gpus_are_found_by_uuid_whatever_its_case() -> None:
    known = inventory([L4], [L4, H100])
    places = [known.places["gpu-node-1-1"], known.places["gpu-node-0-0"]]

    assert [(place.uuid, place.node) for place in places] == [
        ("GPU-node-1-1", "node-1"),
        ("GPU-node-0-0", "node-0"),
    ]
    assert of_places(places).gpus == ((H100, 1), (L4, 1))


def test_how_many_gpus_stand_together() -> None:
    near = [replace(L4, numa_node=0), replace(L4, numa_node=0), replace(L4, numa_node=1)]
    known = inventory(near, [L4] * 8)

    assert known.most_together(lambda gpu: gpu.numa_node) == 2
    assert known.most_together(lambda gpu: gpu.pcie_root) == 0


def test_an_older_generation_of_a_pool_does_not_count() -> None:
    live = LiveInventory()
    live.replace([resource_slice("n", [H100], generation=1, name="a")])
    live.upsert(resource_slice("n", [L4], generation=2, name="b"))

    assert live.snapshot().largest == L4
    live.remove(resource_slice("n", [], generation=2, name="b"))
    assert live.snapshot().largest == H100


def test_an_update_that_changes_only_live_capacity_keeps_the_snapshot() -> None:
    live = LiveInventory()
    live.replace([resource_slice("n", [L4])])
    before = live.snapshot()
    changed: Any = resource_slice("n", [L4])
    changed["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Mi"
    live.upsert(changed)

    assert live.snapshot() is before


@pytest.mark.parametrize(
    "attributes",
    [
        pytest.param(
            {"memoryBytes": {"int": L4.memory_bytes}, "oversubscribed": {"bool": True}}, id="other class"
        ),
        pytest.param({"memoryBytes": {"string": "lots"}}, id="unreadable size"),
        pytest.param({}, id="no size"),
    ],
)
def test_devices_that_a_claim_cannot_get_do_not_count(attributes: dict[str, object]) -> None:
    slice_: Any = resource_slice("n", [L4])
    slice_["spec"]["devices"][0]["attributes"] = attributes
    live = LiveInventory()
    live.replace([slice_, {}, {"spec": {"devices": [None, {"capacity": 1}]}}])

    assert live.snapshot().largest is None
