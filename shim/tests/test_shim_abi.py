# SPDX-License-Identifier: Apache-2.0
"""Our own declarations of the driver's ABI against NVIDIA's headers."""

import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

_SOURCES: Final = Path(__file__).resolve().parents[1] / "src"


@pytest.fixture(scope="module")
def headers() -> str:
    """The folder of cuda.h and nvml.h."""
    return str(resources.files("nvidia.cu13") / "include")


def _compile(folder: Path, headers: str, text: str, *flags: str) -> str:
    source = folder / "check.c"
    source.write_text(text)
    command = ["cc", "-std=gnu11", "-isystem", headers, f"-I{_SOURCES}", str(source)]
    command += ["-o", str(folder / "check")]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return str(folder / "check")


_BOTH: Final = """
#define __CUDA_API_VERSION_INTERNAL
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <cuda.h>
#include <nvml.h>
"""


def _ours() -> str:
    """Our declarations of types and constants."""
    return "".join((_SOURCES / name).read_text() for name in ("abi.h", "nvml_abi.h"))


def test_prototypes_agree_with_the_headers(tmp_path: Path, headers: str) -> None:
    """Declared twice: the compiler refuses what differs."""
    ours = "#define ALIQUOT_ABI_H\n#define ALIQUOT_NVML_ABI_H\n"
    _compile(tmp_path, headers, f'{_BOTH}{ours}#include "driver_api.h"\n#include "nvml_api.h"\n', "-c")


def test_constants_agree_with_the_headers(tmp_path: Path, headers: str) -> None:
    constants = re.findall(r"\b((?:CUDA|CU|NVML)_\w+) = (\d+)", _ours())
    assert len(constants) > 20
    checks = "\n".join(f'_Static_assert((int){name} == {value}, "{name}");' for name, value in constants)
    _compile(tmp_path, headers, _BOTH + checks, "-c")


def test_structures_have_the_headers_size_and_layout(tmp_path: Path, headers: str) -> None:
    structs = dict(re.findall(r"^typedef struct {(.*?)^} (\w+);", _ours(), re.MULTILINE | re.DOTALL))
    rows = [f"sizeof({name})" for name in structs.values()]
    for body, name in structs.items():
        members = re.findall(r"^  [\w ]+[ *](\w+)(?:\[\d+\])?;", body, re.MULTILINE)
        rows += [f"offsetof({name}, {member})" for member in members if member != "rest"]
    printed = [f'printf("%s %zu\\n", "{row}", {row});' for row in rows]
    main = f"#include <stddef.h>\n#include <stdio.h>\nint main(void) {{ {' '.join(printed)} return 0; }}\n"
    layouts = []
    for number, include in enumerate(('#include "abi.h"\n#include "nvml_abi.h"\n', _BOTH)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = _compile(folder, headers, include + main)
        layouts.append(
            subprocess.run([program], check=True, capture_output=True, text=True, timeout=30).stdout
        )
    assert layouts[0] == layouts[1]
