# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from aliquot_cli import cel
from aliquot_webhook import cel as written
from tests.unit.cli.kit import device

DRIVER = "gpu.aliquot.dev"
A = f'device.attributes["{DRIVER}"]'
NUMA: dict[str, Any] = {"resource.kubernetes.io/numaNode": {"int": 1}}


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (f'device.driver == "{DRIVER}"', True),
        (f'device.driver == "{DRIVER}" && {A}.oversubscribed == false', True),
        ("device.allowMultipleAllocations", True),
        (written.equals("sharing", "shim"), True),
        (written.equals("sharing", "mps"), False),
        (written.is_one_of("productName", ["NVIDIA H100", "NVIDIA L4"]), True),
        (written.is_none_of("uuid", ["GPU-1"]), False),
        (written.number_is_one_of("minor", [0, 1]), False),
        (written.number_is_one_of("memoryBytes", [22578 * 1024**2]), True),
        (written.contains_all("productName", ["l4"]), True),
        (written.contains_all("productName", ["h100"]), False),
        (written.capacity_is("shares", "16"), True),
        (written.both(written.equals("sharing", "shim"), written.equals("uuid", 'a"\\b')), False),
        (written.either([written.equals("uuid", "GPU-2"), written.equals("uuid", "GPU-1")]), True),
        (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("16Gi")) >= 0', True),
        (f'device.capacity["{DRIVER}"].memory.isLessThan(quantity("40G"))', True),
        (f'{A}.cudaComputeCapability.isGreaterThan(semver("8.0.0"))', True),
        (f'{A}.cudaComputeCapability.compareTo(semver("9.0.0")) < 0', True),
        ('device.attributes["resource.kubernetes.io"].numaNode == 1', True),
        ('device.attributes["other.example"].?x.orValue("none") == "none"', True),
        (f"has({A}.minor) ? {A}.minor == 3 : true", True),
        (f'!("nvlink" in {A})', True),
        (f'{A}.productName.startsWith("NVIDIA") && {A}.productName.endsWith("4")', True),
        (f'{A}.productName.matches("L[0-9]$")', True),
        (f'{A}.uuid == "GPU-1" || {A}.nothing == 1', True),
        (f'{A}.nothing == 1 || {A}.uuid == "GPU-1"', True),
        ("'single' == \"single\" && -1 < 0", True),
    ],
)
def test_selectors_are_evaluated_as_the_scheduler_does(expression: str, selected: bool) -> None:
    assert cel.selects(expression, device(**NUMA), driver=DRIVER) is selected


@pytest.mark.parametrize(
    "expression",
    [f"{A}.nothing == 1", f"{A}.nothing", f"{A}.uuid < 3", '"text"', f"{A}.minor && true"],
)
def test_what_the_scheduler_fails_on_fails(expression: str) -> None:
    with pytest.raises(cel.Failed):
        cel.selects(expression, device(), driver=DRIVER)


@pytest.mark.parametrize(
    "expression",
    ["[1, 2].all(x, x > 0)", "unknown", "1 +", "a ; b", "device.driver.size() == 3", "(true", "1.5 < 2", ""],
)
def test_what_is_not_known_here_is_said_and_not_guessed(expression: str) -> None:
    with pytest.raises(cel.Unsupported):
        cel.selects(expression, device(), driver=DRIVER)
