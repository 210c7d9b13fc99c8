# SPDX-License-Identifier: Apache-2.0
"""The shim's own log: off by default, a file that the quota names, one line for each cause of refusal."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.probe import NOT_PERMITTED, SUCCESS, Probe
from shim.tests.sandbox import MIB, Sandbox

Start = Callable[..., Probe]
LIMIT: Final = 512 * MIB
LEDGER_MAGIC: Final = 0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "shim.log"


@pytest.fixture
def share(node: Sandbox, log: Path) -> Path:
    return shares.make(node, gpu=node.gpu(), limit=LIMIT, log=log)


def refused(probe: Probe) -> None:
    """cuInit says no; nothing was printed, nothing ended."""
    assert probe.call("cuInit", 0).result == NOT_PERMITTED
    assert probe.call("cuInit", 0).result == NOT_PERMITTED, "and again, without another line"
    assert probe.finish() == (0, "", "")


@pytest.mark.parametrize(
    ("spoilt", "cause"),
    [
        (("quota", 13, b"\x20"), "quota: names another size"),
        (("quota", 20, b"other"), "quota: check value"),
        (("ledger", 0, b"X"), "ledger: not the magic"),
        (("ledger", 16, b"\xff\xff"), "ledger: of another layout"),
    ],
)
def test_cause_of_a_refusal_is_one_line(
    start: Start, node: Sandbox, share: Path, spoilt: tuple[str, int, bytes], cause: str
) -> None:
    shares.poke(share, *spoilt)
    probe = start(node)
    refused(probe)
    log = node.folder / "shim.log"
    assert re.fullmatch(rf"\d+ pid {probe.pid}, share-0: {cause}[^\n]*\n", log.read_text())


@pytest.mark.parametrize("offset", [0, 8], ids=["magic", "layout"])
def test_a_quota_that_is_none_of_ours_names_no_log(
    node: Sandbox, share: Path, log: Path, start: Start, offset: int
) -> None:
    shares.poke(share, "quota", offset, b"\x02")
    refused(start(node))
    assert not log.exists()


def test_nothing_is_written_while_nothing_is_refused(
    node: Sandbox, share: Path, log: Path, start: Start
) -> None:
    probe = start(node)
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    assert not log.exists()


def test_two_processes_append(node: Sandbox, share: Path, log: Path, start: Start) -> None:
    shares.poke(share, "ledger", LEDGER_MAGIC, b"X")
    for _ in range(2):
        refused(start(node))
    assert len(log.read_text().splitlines()) == 2


def test_a_valid_share_tells_of_a_gpu_without_one(tmp_path: Path, log: Path, start: Start) -> None:
    node = Sandbox(folder=tmp_path)
    node.start_node("l4:2")
    shares.make(node, gpu=node.gpu(), limit=LIMIT, log=log)
    start(node).ok("cuInit", 0)
    assert "no share has its UUID" in log.read_text()


def _directory(log: Path) -> None:
    log.mkdir()


def _pipe(log: Path) -> None:
    os.mkfifo(log)


def _link(log: Path) -> None:
    log.symlink_to(log.with_name("elsewhere"))


@pytest.mark.parametrize("make", [_directory, _pipe, _link], ids=["directory", "pipe", "link"])
def test_what_is_no_file_is_left_alone(
    node: Sandbox, share: Path, log: Path, start: Start, make: Callable[[Path], None]
) -> None:
    """A pipe without a reader, above all, makes nobody wait."""
    make(log)
    shares.poke(share, "ledger", LEDGER_MAGIC, b"X")
    refused(start(node))
    assert not log.with_name("elsewhere").exists()


def test_full_disk_loses_the_line_and_nothing_else(node: Sandbox, start: Start) -> None:
    gpu = node.gpu()
    share = shares.make(node, gpu=gpu, limit=LIMIT, log="/dev/full")
    shares.poke(share, "ledger", LEDGER_MAGIC, b"X")
    refused(start(node))


def test_log_is_named_by_the_quota_alone(node: Sandbox, tmp_path: Path, start: Start) -> None:
    share = shares.make(node, gpu=node.gpu(), limit=LIMIT)
    shares.poke(share, "ledger", LEDGER_MAGIC, b"X")
    before = set(tmp_path.iterdir())
    refused(start(node, env=node.environment() | {"ALIQUOT_LOG": str(tmp_path / "by-environment")}))
    assert set(tmp_path.iterdir()) == before
