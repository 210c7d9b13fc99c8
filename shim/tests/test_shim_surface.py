# SPDX-License-Identifier: Apache-2.0
"""Every name of every CUDA release is decided on: hooked, gated, used, or looked at and let through."""

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from shim import headers
from shim.sim import generate

_SOURCES: Final = Path(__file__).resolve().parents[1] / "src"
_CONCERNS: Final = re.compile(r"NVML_FI_\w*(?:MEMORY|_FB_|FRAMEBUFFER|BAR1|PROCESS|PID|UTIL)\w*")
_FIELDS_LOOKED_AT: Final = {
    "NVML_FI_DEV_MEMORY_TEMP",
    "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION",
}


def _hooked() -> list[str]:
    return re.findall(r"^AQ_\w+\(\w+, (\w+)\)", (_SOURCES / "hooks.def").read_text(), re.MULTILINE)


def _passed() -> list[str]:
    lines = (_SOURCES / "passes.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _declared(release: str) -> set[str]:
    folder = headers.folder(release)
    return generate.cuda_names("cc", folder) | generate.nvml_names("cc", folder)


@pytest.mark.parametrize("release", headers.pins())
def test_every_name_is_decided_on(release: str) -> None:
    undecided = _declared(release) - set(_hooked()) - set(_passed())
    assert not undecided, "each belongs into hooks.def, or with its reason into passes.txt"


def test_no_name_is_decided_on_twice_or_in_vain() -> None:
    decided = Counter(_hooked() + _passed())
    assert [name for name, times in decided.items() if times > 1] == []
    assert set(decided) - set().union(*map(_declared, headers.pins())) == set(), "no release has them"


@pytest.mark.parametrize("release", headers.pins())
def test_field_values_tell_nothing_of_memory_in_use_or_processes(release: str) -> None:
    """nvmlDeviceGetFieldValues goes through untouched."""
    fields = set(_CONCERNS.findall((headers.folder(release) / "nvml.h").read_text()))
    assert fields <= _FIELDS_LOOKED_AT
