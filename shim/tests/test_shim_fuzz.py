# SPDX-License-Identifier: Apache-2.0
"""What fuzzing found stays found: each target runs over its kept corpus, under sanitizers."""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

_SHIM: Final = Path(__file__).resolve().parents[1]
_FUZZ: Final = _SHIM / "tests" / "fuzz"
_SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def _targets() -> dict[str, list[str]]:
    """Fuzz target -> the sources it is linked with, as the Makefile says."""
    text = (_SHIM / "Makefile").read_text()
    rows = re.findall(r"^FUZZ_([a-z]\w+) := (.*)$", text, re.MULTILINE)
    return {name: files.split() for name, files in rows}


@pytest.mark.parametrize(("target", "sources"), _targets().items(), ids=_targets())
def test_kept_corpus_is_handled(tmp_path: Path, target: str, sources: list[str]) -> None:
    program = tmp_path / target
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", *_SANITIZERS, "-Iinclude", "-Isrc"]
    command += ["-o", str(program), f"tests/fuzz/{target}.c", "tests/fuzz/replay.c", *sources, "-lpthread"]
    done = subprocess.run(command, cwd=_SHIM, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    corpus = [str(path) for path in sorted((_FUZZ / "corpus" / target).iterdir())]
    assert corpus
    done = subprocess.run([program, *corpus], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
