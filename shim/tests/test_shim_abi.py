# SPDX-License-Identifier: Apache-2.0
"""Our own declarations of the driver's ABI against NVIDIA's headers."""

import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

_SOURCES: Final = Path(__file__).resolve().parents[1] / "src"
_STRUCTS: Final = ("nvmlMemory_t", "nvmlMemory_v2_t", "nvmlProcessInfo_v1_t", "nvmlProcessInfo_t", "CUuuid")


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


def test_prototypes_agree_with_the_headers(tmp_path: Path, headers: str) -> None:
    """Declared twice: the compiler refuses what differs."""
    text = _BOTH + '#define ALIQUOT_ABI_H\n#include "driver_api.h"\n'
    _compile(tmp_path, headers, text, "-c")


def test_constants_agree_with_the_headers(tmp_path: Path, headers: str) -> None:
    constants = re.findall(r"\b((?:CUDA|CU|NVML)_\w+) = (\d+)", (_SOURCES / "abi.h").read_text())
    assert len(constants) > 20
    ours = {"NVML_DEVICE_UUID_V2_BUFFER_SIZE"}
    checks = "\n".join(
        f'_Static_assert({name} == {value}, "{name}");' for name, value in constants if name not in ours
    )
    _compile(tmp_path, headers, _BOTH + checks, "-c")


def test_structures_have_the_headers_size_and_layout(tmp_path: Path, headers: str) -> None:
    printed = [f'printf("%zu\\n", sizeof({name}));' for name in _STRUCTS]
    main = f"#include <stdio.h>\nint main(void) {{ {' '.join(printed)} return 0; }}\n"
    sizes = []
    for number, include in enumerate(('#include "abi.h"\n', _BOTH)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = _compile(folder, headers, include + main)
        sizes.append(subprocess.run([program], check=True, capture_output=True, text=True, timeout=30).stdout)
    assert sizes[0] == sizes[1]
