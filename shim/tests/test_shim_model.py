# SPDX-License-Identifier: Apache-2.0
"""Reservations, slots and pools: the real sources through all interleavings, and books also with kills.

As many preemptions and kills as stand here; ALIQUOT_MODEL_PREEMPTIONS=2 explores further, for half an hour.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

_SHIM: Final = Path(__file__).resolve().parents[1]
_FLAGS: Final = (
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-value",
)
_MORE: Final = int(os.environ.get("ALIQUOT_MODEL_PREEMPTIONS", "0"))
_SCENARIOS: Final = {
    "two-takers": (1, 1),
    "three-visitors": (1, 0),
    "contexts": (1, 0),
    "after-a-death": (1, 1),
    "witness": (1, 1),
    "late-agent": (2, 0),
    "sweepers": (1, 0),
}
"""Scenario of model/protocol.c -> preemptions and kills."""
_POOLS: Final = {"two": 3, "beside": 3, "synchronised": 3, "unseen": 2, "all": 2}
"""Scenario of model/pools.c -> preemptions."""


def _build(program: Path, *sources: str) -> Path:
    command = ["cc", *_FLAGS, "-include", "tests/model/atomics.h", "-Iinclude", "-Isrc", "-o", str(program)]
    done = subprocess.run(
        [*command, *sources], cwd=_SHIM, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("model") / "protocol"
    return _build(program, "tests/model/protocol.c", "src/slot.c", "src/books.c", "src/view.c")


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("model") / "pools", "tests/model/pools.c")


@pytest.mark.timeout(0 if _MORE else 900)
@pytest.mark.parametrize("scenario", _SCENARIOS)
def test_no_interleaving_breaks_the_books(protocol: Path, scenario: str) -> None:
    preemptions, kills = _SCENARIOS[scenario]
    command = [str(protocol), scenario, str(max(preemptions, _MORE)), str(max(kills, min(_MORE, 1)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 50, "runs"


@pytest.mark.timeout(0 if _MORE else 300)
@pytest.mark.parametrize("scenario", _POOLS)
def test_no_interleaving_lets_a_pool_grow_unseen(pools: Path, scenario: str) -> None:
    command = [str(pools), scenario, str(max(_POOLS[scenario], _MORE))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 5000, "runs"
