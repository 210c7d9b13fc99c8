# SPDX-License-Identifier: Apache-2.0
"""All claims are known at once, whoever wrote them, without reading the directory again and again."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot_agent import checkpoint
from aliquot_agent.checkpoint import Checkpoints, PreparedClaim, UnreadableCheckpoint, decode, encode
from tests.unit.agent.kit import Node, make_claim, result


@pytest.fixture
def claim(node: Node) -> PreparedClaim:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims = node.claims()
    claims.prepare(ref)
    [entry] = claims.prepared()
    return entry


class Company:
    """Whether another agent is there."""

    def __init__(self) -> None:
        self.alone = True

    def __call__(self) -> bool:
        return self.alone


def test_what_was_written_is_read_back(claim: PreparedClaim) -> None:
    assert decode(encode(claim), uid=claim.uid) == claim


@pytest.mark.parametrize("position", [0, 30, 120, -2])
def test_a_byte_that_changed_is_noticed(claim: PreparedClaim, position: int) -> None:
    data = bytearray(encode(claim))
    data[position] ^= 1
    with pytest.raises(UnreadableCheckpoint):
        decode(bytes(data), uid=claim.uid)


def rewritten(claim: PreparedClaim, *, share: dict[str, object], **of_claim: object) -> bytes:
    """A claim's file with fields of its first share, and of itself, as another version would write them."""
    body = json.loads(encode(claim))["claim"] | of_claim
    body["shares"][0] |= share
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({"version": checkpoint.VERSION, "checksum": checksum, "claim": body}).encode()


def test_what_only_a_newer_agent_knows_is_kept_through_changes_of_ours(claim: PreparedClaim) -> None:
    written = rewritten(claim, share={"bandwidth": [1, {"a": None}]}, tenant="é")
    read = decode(written, uid=claim.uid)
    assert (read.name, read.shares[0].memory_bytes) == (claim.name, claim.shares[0].memory_bytes)
    ours = replace(read, name="other", shares=(replace(read.shares[0], limit_bytes=1),))
    body = json.loads(encode(ours))["claim"]
    assert (body["tenant"], body["shares"][0]["bandwidth"]) == ("é", [1, {"a": None}])
    assert (body["name"], body["shares"][0]["limit_bytes"]) == ("other", 1)
    assert decode(encode(ours), uid=claim.uid) == ours


@pytest.mark.parametrize(
    "field", ["sharing", "growth", "priority", "claim_over_quota", "class_compute_policy"]
)
def test_a_word_that_only_a_newer_agent_knows_sets_the_file_aside(claim: PreparedClaim, field: str) -> None:
    with pytest.raises(UnreadableCheckpoint, match="quantum"):
        decode(rewritten(claim, share={field: "quantum"}), uid=claim.uid)


def test_a_draft_counts_from_its_commit_on_and_leaves_nothing_without(
    claim: PreparedClaim, tmp_path: Path
) -> None:
    ours = Checkpoints(directory=tmp_path / "own", alone=Company())
    ours.start()
    with ours.draft(claim):
        assert (ours.all(), ours.load(claim.uid)) == ((), None)
    assert list((tmp_path / "own").iterdir()) == []
    with ours.draft(claim) as draft:
        draft.commit()
    assert (ours.all(), ours.load(claim.uid)) == ((claim,), claim)
    assert [path.name for path in (tmp_path / "own").iterdir()] == [f"{claim.uid}.json"]


def test_our_own_writes_show_at_once(claim: PreparedClaim, tmp_path: Path) -> None:
    ours = Checkpoints(directory=tmp_path / "own", alone=Company())
    ours.start()
    assert ours.all() == ()
    ours.save(claim)
    assert ours.all() == (claim,)
    changed = replace(claim, name="other")
    ours.save(changed)
    assert ours.all() == (changed,)
    ours.remove(claim.uid)
    assert ours.all() == ()


def test_another_agents_writes_show_at_once_while_it_is_there_and_after_it_has_gone(
    claim: PreparedClaim, tmp_path: Path
) -> None:
    company = Company()
    ours = Checkpoints(directory=tmp_path / "own", alone=company)
    ours.start()
    assert ours.all() == ()
    theirs = Checkpoints(directory=tmp_path / "own")
    company.alone = False
    theirs.save(claim)
    assert ours.all() == (claim,)
    theirs.remove(claim.uid)
    company.alone = True
    assert ours.all() == ()


def test_what_an_operator_removes_is_noticed_within_a_moment(
    claim: PreparedClaim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Checkpoints(directory=tmp_path / "own", alone=Company())
    ours.start()
    ours.save(claim)
    assert ours.all() == (claim,)
    (tmp_path / "own" / f"{claim.uid}.json").unlink()
    monkeypatch.setattr("aliquot_agent.checkpoint._FRESH_S", 0.0)
    assert ours.all() == ()


def test_claims_that_are_gone_are_not_kept_in_memory(claim: PreparedClaim, tmp_path: Path) -> None:
    ours, theirs = (Checkpoints(directory=tmp_path / "own", alone=lambda: False) for _ in range(2))
    ours.start()
    for number in range(20):
        each = replace(claim, uid=f"uid-{number}")
        ours.save(each)
        assert ours.all() == (each,)
        (theirs if number % 2 else ours).remove(each.uid)
    assert ours.all() == ()
    assert ours._cache == {}


def test_what_we_wrote_is_not_read_again(
    claim: PreparedClaim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Checkpoints(directory=tmp_path / "own", alone=lambda: False)  # looks at the directory each time
    ours.start()
    ours.save(claim)
    monkeypatch.setattr(checkpoint, "decode", None)
    assert ours.all() == (claim,)
