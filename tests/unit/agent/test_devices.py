# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from aliquot_agent import devices
from aliquot_agent.devices import PciPlace
from aliquot_agent.nodepolicy import GpuPolicy
from aliquot_api import modes, quantity
from tests.unit.agent.kit import GIB, build_device, make_gpu

MIB = 1024**2


def build(**changes: object) -> devices.Device:
    return build_device(make_gpu(**changes), place=None)  # type: ignore[arg-type]


def test_a_device_is_named_by_its_uuid_in_lower_case() -> None:
    gpu = make_gpu()
    device = build()
    assert device["name"] == gpu.uuid.lower()
    assert device["attributes"]["uuid"] == {"string": gpu.uuid}
    assert device["allowMultipleAllocations"] is True


@pytest.mark.parametrize(
    ("memory_bytes", "reserve_bytes", "published"),
    [
        pytest.param(24 * GIB, 0, "24576Mi", id="on the grid"),
        pytest.param(85_094_039_552, 0, "81152Mi", id="H100"),
        pytest.param(24 * GIB + MIB - 1, 0, "24576Mi", id="last MiB not whole"),
        pytest.param(24 * GIB, 100 * MIB + 1, "24475Mi", id="with a reserve"),
    ],
)
def test_memory_is_published_in_whole_mebibytes(
    memory_bytes: int, reserve_bytes: int, published: str
) -> None:
    gpu = make_gpu(memory_bytes=memory_bytes)
    device = build_device(gpu, policy=GpuPolicy(reserve_bytes=reserve_bytes))
    memory = device["capacity"]["memory"]
    assert memory["value"] == published
    assert memory["requestPolicy"]["default"] == published
    assert device["attributes"]["memoryBytes"]["int"] == quantity.parse(published, field="memory")


@pytest.mark.parametrize("name", ["memory", "cores", "shares"])
def test_each_capacity_has_a_policy_that_the_server_accepts(name: str) -> None:
    capacity = build()["capacity"][name]
    policy, limits = capacity["requestPolicy"], capacity["requestPolicy"]["validRange"]
    value, default, least, most, step = (
        quantity.parse(text, field=name)
        for text in (capacity["value"], policy["default"], limits["min"], limits["max"], limits["step"])
    )
    assert least <= default <= most <= value
    assert (default - least) % step == (most - least) % step == 0


def test_a_gpu_for_one_tenant_gives_everything_or_nothing() -> None:
    policy = GpuPolicy(sharing=modes.EXCLUSIVE, reserve_bytes=MIB)
    device = build_device(make_gpu(memory_bytes=100 * MIB), policy=policy)
    assert device["attributes"]["sharing"] == {"string": "exclusive"}
    for name, value in (("memory", "99Mi"), ("cores", "100"), ("shares", "1")):
        capacity = device["capacity"][name]
        assert capacity == {"value": value, "requestPolicy": {"default": value, "validValues": [value]}}


def test_one_share_needs_no_range() -> None:
    shares = build_device(make_gpu(), policy=GpuPolicy(shares=1))["capacity"]["shares"]
    assert shares == {"value": "1", "requestPolicy": {"default": "1", "validValues": ["1"]}}


def test_a_claim_that_names_no_capacity_takes_the_memory_and_no_cores() -> None:
    defaults = {name: capacity["requestPolicy"]["default"] for name, capacity in build()["capacity"].items()}
    assert defaults == {"memory": "24576Mi", "cores": "0", "shares": "1"}


def test_every_device_has_the_same_attributes() -> None:
    full = build(brand="Tesla", nvlink_clique="1", fabric_cluster_uuid="x")
    bare = build(
        product_name="",
        brand="",
        architecture="",
        nvlink_clique="",
        fabric_cluster_uuid="",
        cuda_driver_version=0,
    )
    assert set(full["attributes"]) == set(bare["attributes"])
    assert set(full["attributes"]) == {
        *("uuid", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion"),
        *("cudaDriverVersion", "minor", "memoryBytes", "sharing", "timeSlice", "oversubscribed"),
        *("nvlinkClique", "fabricClusterUUID"),
    }


def test_attributes_keep_to_the_servers_length() -> None:
    assert len(build(product_name="x" * 100)["attributes"]["productName"]["string"]) == 64


@pytest.mark.parametrize(
    ("place", "published"),
    [
        pytest.param(None, {}, id="unknown"),
        pytest.param(
            PciPlace(bus_id="0000:1b:00.0", root=None, numa_node=None),
            {"pciBusID": "0000:1b:00.0"},
            id="bus only",
        ),
        pytest.param(
            PciPlace(bus_id="0000:1b:00.0", root="pci0000:16", numa_node=1),
            {"pciBusID": "0000:1b:00.0", "pcieRoot": "pci0000:16", "numaNode": 1},
            id="all",
        ),
    ],
)
def test_standard_attributes_are_there_where_known(
    place: PciPlace | None, published: dict[str, str | int]
) -> None:
    device = build_device(make_gpu(), place=place)
    prefix = "resource.kubernetes.io/"
    found = {
        name.removeprefix(prefix): next(iter(value.values()))
        for name, value in device["attributes"].items()
        if name.startswith(prefix)
    }
    assert found == published


def test_the_place_is_read_from_sysfs(tmp_path: Path) -> None:
    real = tmp_path / "devices" / "pci0000:16" / "0000:16:01.0" / "0000:1b:00.0"
    real.mkdir(parents=True)
    (real / "numa_node").write_text("1\n")
    links = tmp_path / "bus"
    links.mkdir()
    (links / "0000:1b:00.0").symlink_to(real)
    expected = PciPlace(bus_id="0000:1b:00.0", root="pci0000:16", numa_node=1)
    assert devices.pci_place("00000000:1B:00.0", sysfs=links) == expected
    (real / "numa_node").write_text("-1\n")
    place = devices.pci_place("00000000:1B:00.0", sysfs=links)
    assert place is not None
    assert place.numa_node is None


@pytest.mark.parametrize("text", ["", "nonsense", "00010000:1B:00.0"])
def test_a_bus_id_that_does_not_fit_is_not_published(text: str, tmp_path: Path) -> None:
    assert devices.pci_place(text, sysfs=tmp_path) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [("570.86.05", "570.86.5"), ("535.54", "535.54.0"), ("580.95.05.01", "580.95.5"), ("", "0.0.0")],
)
def test_versions_become_semantic(text: str, version: str) -> None:
    assert devices.semantic_version(text) == version
