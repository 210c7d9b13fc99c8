# SPDX-License-Identifier: Apache-2.0
"""Unmodified clients from PyPI, with and without the shim: the same answers, and the limit in its place."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from shim.tests import shares
from shim.tests.sandbox import MIB, PYTHON, Sandbox

LIMIT_MIB: Final = 1024
CHUNK_MIB: Final = 64
OUT_OF_MEMORY: Final = 2
_CLIENTS: Final = Path(__file__).resolve().parent / "clients"


def answers(node: Sandbox, client: str, *, bare: bool = False) -> dict[str, Any]:
    """What the client printed."""
    environment = node.environment(bare=bare) | {"CUDA_HOME": str(node.folder)}
    run = node.run(PYTHON, str(_CLIENTS / f"client_{client}.py"), bare=bare, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


@pytest.fixture
def share(node: Sandbox) -> Path:
    gpu = node.books()["gpus"][0]
    return shares.make(node, gpu=str(gpu["uuid"]), limit=LIMIT_MIB * MIB, estimate=int(gpu["context"]))


def room(node: Sandbox) -> int:
    """Whole chunks that fit beside one context, in MiB."""
    context = node.context_bytes() // MIB
    return (LIMIT_MIB - context) // CHUNK_MIB * CHUNK_MIB


@pytest.mark.parametrize("client", ["bindings", "core", "numba", "nvml"])
def test_client_sees_no_difference_but_the_limit(node: Sandbox, client: str) -> None:
    bare = answers(node, client, bare=True)
    gpu = node.gpu()
    shares.make(node, gpu=gpu, limit=1 << 45)
    assert answers(node, client) == bare
    assert int(node.books()["gpus"][0]["used"]) == 0


def test_bindings_fill_the_share_with_each_family(node: Sandbox, share: Path) -> None:
    got = answers(node, "bindings")
    assert got["total"] == LIMIT_MIB
    for family in ("linear", "virtual", "pool", "managed"):
        assert got[family] == [room(node), OUT_OF_MEMORY], family
    assert got["free at the end"] == got["free"]


@pytest.mark.parametrize(("client", "family"), [("core", "pool"), ("numba", "linear")])
def test_client_gets_its_own_error_at_the_limit(node: Sandbox, share: Path, client: str, family: str) -> None:
    assert answers(node, client)[family] == [room(node), "OUT_OF_MEMORY"]


def test_nvml_shows_the_share(node: Sandbox, share: Path) -> None:
    got = answers(node, "nvml")
    assert (got["total"], got["same"]) == (LIMIT_MIB, True)
