# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are written over files that wait for them; without any they are made anew."""

from pathlib import Path

import pytest

from aliquot_agent import files
from aliquot_agent.claims import Claims
from aliquot_agent.spares import MOST, Spares
from tests.unit.agent.kit import Node, make_claim, result


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.iterdir()}


@pytest.fixture
def spare_dir(node: Node) -> Path:
    return node.checkpoint_dir.with_name("claims-spare")


def prepare(node: Node, claims: Claims, name: str) -> Path:
    """Its checkpoint."""
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory="100Mi"), name=name))
    claims.prepare(ref)
    return node.checkpoint_dir / f"{ref.uid}.json"


def test_a_prepare_makes_no_file_on_the_disk(node: Node, spare_dir: Path) -> None:
    claims = node.claims()
    claims.make_ready()
    waiting = inodes(spare_dir)
    assert len(waiting) == MOST
    assert prepare(node, claims, "a").stat().st_ino in waiting
    assert len(inodes(spare_dir)) == MOST - 1


def test_what_a_claim_leaves_is_written_over_whole(node: Node, spare_dir: Path) -> None:
    claims = node.claims()
    long, short = "a" * 200, "b"
    first = prepare(node, claims, long)
    inode, size = first.stat().st_ino, first.stat().st_size
    claims.unprepare(first.stem)
    assert inodes(spare_dir) == {inode}
    second = prepare(node, claims, short)
    assert second.stat().st_ino == inode
    assert second.stat().st_size < size
    assert [claim.name for claim in node.claims().prepared()] == [short]


def test_no_more_wait_than_a_burst_needs(node: Node, spare_dir: Path) -> None:
    claims = node.claims()
    checkpoint = prepare(node, claims, "a")
    claims.make_ready()
    claims.make_ready()
    claims.unprepare(checkpoint.stem)
    assert len(inodes(spare_dir)) == MOST
    assert not checkpoint.exists()


def test_two_agents_of_a_rolling_update_do_without_each_others(node: Node, spare_dir: Path) -> None:
    old = node.claims()
    old.make_ready()
    new = node.claims()
    assert inodes(spare_dir) == set(), "of a process that may have died"
    new.make_ready()
    for number, claims in enumerate((old, new, old)):
        prepare(node, claims, f"c{number}")
    assert len(inodes(spare_dir)) == MOST - 1
    assert len(new.prepared()) == 3


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("theirs")
    link.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        files.write_over(str(link), b"ours")
    assert target.read_text() == "theirs"


def test_nothing_to_take_and_nothing_to_give_is_said(tmp_path: Path) -> None:
    spares = Spares(directory=tmp_path / "spare")
    spares.start()
    assert not spares.take(str(tmp_path / "a"))
    assert not spares.give(str(tmp_path / "a"))
    spares.fill()
    assert spares.take(str(tmp_path / "a"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "spare"]
