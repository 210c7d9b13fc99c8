# SPDX-License-Identifier: Apache-2.0
"""Without a valid share nothing may be used; the program is told so, and lives on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import LIMIT
from shim.tests.probe import (
    NOT_INITIALIZED,
    NOT_PERMITTED,
    NVML_NO_PERMISSION,
    OUT_OF_MEMORY,
    SUCCESS,
    Probe,
)
from shim.tests.sandbox import Sandbox

Start = Callable[..., Probe]


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


DAMAGE: Final[dict[str, Callable[[Path], object]]] = {
    "no-share": shutil.rmtree,
    "no-quota": lambda share: (share / "quota").unlink(),
    "no-ledger": lambda share: (share / "ledger").unlink(),
    "quota-magic": lambda share: shares.poke(share, "quota", 0, b"X"),
    "quota-layout": lambda share: shares.poke(share, "quota", 8, b"\x02"),
    "quota-size": lambda share: shares.poke(share, "quota", 13, b"\x20"),
    "quota-uuid": lambda share: shares.poke(share, "quota", 20, b"other"),
    "quota-check": lambda share: shares.poke(share, "quota", 32, b"wrong"),
    "quota-truncated": lambda share: _truncate(share / "quota", 4095),
    "quota-empty": lambda share: _truncate(share / "quota", 0),
    "quota-link": lambda share: _replace_by_link(share / "quota"),
    "quota-directory": lambda share: _replace_by_directory(share / "quota"),
    "ledger-magic": lambda share: shares.poke(share, "ledger", 0, b"X"),
    "ledger-layout": lambda share: shares.poke(share, "ledger", 8, b"\x02"),
    "ledger-slots": lambda share: shares.poke(share, "ledger", 16, b"\xff\xff"),
    "ledger-truncated": lambda share: _truncate(share / "ledger", region.LEDGER_SIZE - 1),
    "ledger-empty": lambda share: _truncate(share / "ledger", 0),
    "swapped": lambda share: _swap(share / "quota", share / "ledger"),
    "hidden-name": lambda share: share.rename(share.with_name(".share")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_share_gives_no_gpu(
    node: Sandbox, share: Path, start: Start, damage: Callable[[Path], object]
) -> None:
    damage(share)
    probe = start(node)
    assert probe.call("cuInit", 0).result == NOT_PERMITTED
    for init in ("nvmlInit", "nvmlInit_v2"):
        assert probe.call(init).result == NVML_NO_PERMISSION
    assert probe.call("nvmlInitWithFlags", 0).result == NVML_NO_PERMISSION
    assert probe.alloc(1)[0] == NOT_INITIALIZED
    assert probe.call("cuDevicePrimaryCtxRetain", "&0", 0).result == NOT_INITIALIZED
    status, _, errors = probe.finish()
    assert (status, errors) == (0, ""), "neither ended nor printed"


def test_share_can_be_repaired_while_the_program_lives(node: Sandbox, share: Path, start: Start) -> None:
    quota = share / "quota"
    quota.rename(share / "kept")
    probe = start(node)
    assert probe.call("cuInit", 0).result == NOT_PERMITTED
    (share / "kept").rename(quota)
    probe.begin()
    assert probe.info() == (LIMIT, LIMIT)


def test_ledger_that_cannot_be_written_gives_no_gpu(node: Sandbox, share: Path, start: Start) -> None:
    node.read_only = ("share-0/ledger",)
    assert start(node).call("cuInit", 0).result == NOT_PERMITTED


def test_quota_mounted_read_only_is_all_that_is_needed(node: Sandbox, share: Path, start: Start) -> None:
    node.read_only = ("share-0/quota",)
    probe = start(node)
    probe.begin()
    assert probe.alloc(LIMIT + 1)[0] == OUT_OF_MEMORY


def test_gpu_without_a_share_is_refused_beside_one_that_has(tmp_path: Path, start: Start) -> None:
    node = Sandbox(folder=tmp_path)
    node.start_node("l4:2")
    shares.make(node, gpu=node.gpu(), limit=LIMIT)
    probe = start(node)
    probe.ok("cuInit", 0)
    for symbol, arguments in (
        ("cuDevicePrimaryCtxRetain", ("&0", 1)),
        ("cuCtxCreate", ("&0", 0, 1)),
        ("cuCtxCreate_v2", ("&0", 0, 1)),
        ("cuCtxCreate_v3", ("&0", 0, 0, 0, 1)),
        ("cuCtxCreate_v4", ("&0", 0, 0, 1)),
    ):
        answer = probe.call(symbol, *arguments)
        assert (answer.result, answer.cells) == (NOT_PERMITTED, {}), symbol
    probe.begin(0)
    assert probe.alloc(LIMIT)[0] == SUCCESS
    probe.ok("nvmlInit_v2")
    handle = probe.ok("nvmlDeviceGetHandleByIndex_v2", 1, "&40").cells[40]
    assert probe.call("nvmlDeviceGetMemoryInfo", handle, "&41").result == NVML_NO_PERMISSION


def test_two_shares_of_one_gpu_cancel_each_other(node: Sandbox, share: Path, start: Start) -> None:
    shares.make(node, gpu=node.gpu(), limit=2 * LIMIT, name="share-1")
    assert start(node).call("cuInit", 0).result == NOT_PERMITTED


@pytest.mark.parametrize(
    "variable",
    [
        "ALIQUOT_DISABLE=1",
        "ALIQUOT_SHARES_DIR=/tmp",
        "CUDA_DEVICE_MEMORY_LIMIT=0",
        "CUDA_DISABLE_CONTROL=true",
        "LD_AUDIT=",
        "GLIBC_TUNABLES=glibc.malloc.check=1",
    ],
)
def test_no_environment_variable_weakens_anything(
    node: Sandbox, share: Path, start: Start, variable: str
) -> None:
    name, _, value = variable.partition("=")
    probe = start(node, env=node.environment() | {name: value})
    probe.begin()
    assert probe.alloc(LIMIT + 1)[0] == OUT_OF_MEMORY
    assert probe.info() == (LIMIT, LIMIT)


def test_ledger_overwritten_while_in_use_never_gives_more(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    shares.poke(share, "ledger", 64, bytes(region.LEDGER_SIZE - 64))
    group = node.books()["groups"][0]
    probe.alloc(1)
    assert probe.alloc(LIMIT)[0] == OUT_OF_MEMORY, "our own records count, whatever the ledger says"
    shares.poke(share, "ledger", region.LEDGER_HEADER_SIZE, b"\xff" * 8)
    assert probe.alloc(1)[0] == OUT_OF_MEMORY
    assert probe.info()[0] == 0
    assert int(group["requested_peak"]) == LIMIT
