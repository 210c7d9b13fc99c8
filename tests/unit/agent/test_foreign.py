# SPDX-License-Identifier: Apache-2.0
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent import foreign
from tests.unit.agent.kit import make_gpu

ONE, TWO = make_gpu(0), make_gpu(1)
GPUS = (ONE, TWO)


def checkpoint(registered: dict[str, Any], held: list[dict[str, Any]] | None = None) -> str:
    return json.dumps({"Data": {"PodDeviceEntries": held, "RegisteredDevices": registered}, "Checksum": 1})


@pytest.mark.parametrize(
    ("registered", "owned"),
    [
        pytest.param({"nvidia.com/gpu": [TWO.uuid]}, {TWO.uuid}, id="by UUID"),
        pytest.param({"nvidia.com/gpu": ["1"]}, {TWO.uuid}, id="by index"),
        pytest.param({"nvidia.com/gpu.shared": [f"{ONE.uuid}::3"]}, {ONE.uuid}, id="time-sliced"),
        pytest.param({"nvidia.com/gpu": [f"{ONE.uuid}-9"]}, {ONE.uuid}, id="HAMi's replicas"),
        pytest.param({"example.com/gpu": [ONE.uuid.upper()]}, {ONE.uuid}, id="other vendor"),
        pytest.param({"example.com/nic": ["0", "1"]}, set(), id="numbers of something else"),
        pytest.param({"nvidia.com/gpu": []}, set(), id="plugin is gone"),
        pytest.param({"nvidia.com/gpu": None}, set(), id="nothing"),
        pytest.param({}, set(), id="no plugin"),
    ],
)
def test_gpus_of_a_device_plugin_are_known(registered: dict[str, Any], owned: set[str]) -> None:
    assert set(foreign.by_device_plugin(checkpoint(registered), GPUS)) == owned


@pytest.mark.parametrize("ids", [{"-1": [TWO.uuid]}, [TWO.uuid]], ids=["by NUMA node", "older list"])
def test_a_gpu_that_a_pod_still_holds_is_known(ids: object) -> None:
    held = [{"PodUID": "u", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ids}]
    owners = foreign.by_device_plugin(checkpoint({"nvidia.com/gpu": []}, held), GPUS)
    assert owners == {TWO.uuid: "a device plugin hands it out as nvidia.com/gpu"}


@given(st.text(max_size=50) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_a_checkpoint_of_another_shape_is_said_to_be_one(text: str) -> None:
    with pytest.raises(foreign.Unreadable):
        foreign.by_device_plugin(text, GPUS)


def slice_of(driver: str, **attributes: str) -> dict[str, Any]:
    named = {name: {"string": text} for name, text in attributes.items()}
    return {"spec": {"driver": driver, "devices": [{"name": "gpu-0", "attributes": named}]}}


def test_gpus_that_another_driver_publishes_are_known() -> None:
    bus_ids = {TWO.uuid: "0000:1b:00.0"}
    by_uuid = slice_of("gpu.nvidia.com", uuid=ONE.uuid)
    by_bus = slice_of("hami-core-gpu.project-hami.io", pcieBusID="0000:1B:00.0")
    own = slice_of("gpu.aliquot.dev", uuid=ONE.uuid)
    nic = slice_of("dra.net", pciBusID="0000:99:00.0")
    owners = foreign.by_slices([by_uuid, by_bus, own, nic], GPUS, bus_ids)
    assert owners == {
        ONE.uuid: "DRA driver gpu.nvidia.com publishes it too",
        TWO.uuid: "DRA driver hami-core-gpu.project-hami.io publishes it too",
    }
    assert foreign.by_slices([own, nic, {"spec": {"driver": "x", "devices": None}}], GPUS, bus_ids) == {}


def test_gpus_that_hami_counts_are_known_until_it_says_that_they_are_gone() -> None:
    annotations = {"hami.io/node-nvidia-register": json.dumps([{"id": ONE.uuid, "count": 10}])}
    assert set(foreign.by_hami(annotations, GPUS)) == {ONE.uuid}
    assert foreign.by_hami({**annotations, "hami.io/node-handshake": "Deleted_2026.01.02"}, GPUS) == {}
    assert foreign.by_hami({}, GPUS) == {}
