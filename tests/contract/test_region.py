# SPDX-License-Identifier: Apache-2.0
"""region.py mirrors shim/include/aliquot_region.h: every field and every constant, both ways."""

import ctypes
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent import region
from aliquot_api import names

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "shim" / "include" / "aliquot_region.h"
SUMS = ROOT / "shim" / "src" / "sums.h"

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "aq_quota": region.QuotaLayout,
    "aq_slot": region.SlotLayout,
    "aq_ledger": region.LedgerLayout,
}
CONSTANTS: dict[str, int | bytes | str] = {
    "AQ_SHARES_DIR": names.CONTAINER_SHARES_DIR,
    "AQ_QUOTA_MAGIC": region.QUOTA_MAGIC.decode(),
    "AQ_LEDGER_MAGIC": region.LEDGER_MAGIC.decode(),
    "AQ_LAYOUT": region.LAYOUT,
    "AQ_QUOTA_SIZE": region.QUOTA_SIZE,
    "AQ_LOG_PATH": region.LOG_PATH_SIZE,
    "AQ_LEDGER_HEADER_SIZE": region.LEDGER_HEADER_SIZE,
    "AQ_SLOTS": region.SLOTS,
    "AQ_SLOT_SIZE": region.SLOT_SIZE,
    "AQ_LEDGER_SIZE": region.LEDGER_SIZE,
    "AQ_FLAG_UNLIMITED": region.FLAG_UNLIMITED,
    "AQ_OVERHEAD_UNKNOWN": region.OVERHEAD_UNKNOWN,
    "AQ_SLOT_LOCK_BASE": region.SLOT_LOCK_BASE,
}


def defined_constants() -> set[str]:
    """Names of the header's object-like macros with a value."""
    return set(re.findall(r"^#define (AQ_\w+) +\S", HEADER.read_text(), re.MULTILINE))


def struct_fields(struct: type[ctypes.Structure]) -> Iterator[str]:
    """Field names of a mirrored struct."""
    for field in struct._fields_:
        yield field[0]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the compiler says about each mirrored name; one that C lacks does not compile."""
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("\\"{name}\\": {{\\"\\": [0, %zu]", sizeof(struct {name}));')
        lines += [
            f'printf(", \\"{field}\\": [%zu, %zu]", offsetof(struct {name}, {field}), '
            f"sizeof(((struct {name} *)0)->{field}));"
            for field in struct_fields(struct)
        ]
        lines.append('printf("},\\n");')
    for name, value in CONSTANTS.items():
        if isinstance(value, int):
            lines.append(f'printf("\\"{name}\\": %llu,\\n", (unsigned long long){name});')
        else:
            lines.append(f'printf("\\"{name}\\": \\"%s\\",\\n", {name});')
    folder = tmp_path_factory.mktemp("region")
    source, program = folder / "layout.c", folder / "layout"
    body = "\n  ".join(lines)
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\n'
        f'int main(void) {{\n  printf("{{\\n");\n  {body}\n  printf("\\"end\\": 0}}\\n");\n  return 0;\n}}\n'
    )
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Werror", "-o", program, source], check=True, timeout=60)
    output = subprocess.run([program], check=True, capture_output=True, timeout=10).stdout
    answer: dict[str, Any] = json.loads(output)
    return answer


@pytest.mark.parametrize("name", STRUCTS)
def test_each_field_lies_where_c_has_it(name: str, compiled: dict[str, Any]) -> None:
    struct = STRUCTS[name]
    mirrored = {
        field: [getattr(struct, field).offset, getattr(struct, field).size] for field in struct_fields(struct)
    }
    assert {"": [0, ctypes.sizeof(struct)], **mirrored} == compiled[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_no_c_field_is_missing(name: str) -> None:
    # Fields that tile the struct without a gap leave no room for one that is not mirrored.
    struct, position = STRUCTS[name], 0
    for field in struct_fields(struct):
        assert getattr(struct, field).offset == position, f"gap before {field}"
        position += getattr(struct, field).size
    assert position == ctypes.sizeof(struct)


@pytest.mark.parametrize("name", CONSTANTS)
def test_each_constant_has_its_c_value(name: str, compiled: dict[str, Any]) -> None:
    assert compiled[name] == CONSTANTS[name]


@pytest.mark.parametrize("name", ["SANE_BYTES", "SANE_CONTEXTS"])
def test_what_is_no_count_is_the_same_for_the_shim(name: str) -> None:
    defined = re.search(rf"^#define {name} +\(1ULL << (\d+)\)$", SUMS.read_text(), re.MULTILINE)
    assert defined is not None
    assert getattr(region, name) == 1 << int(defined[1])


def test_no_c_constant_is_missing() -> None:
    assert defined_constants() == set(CONSTANTS)
