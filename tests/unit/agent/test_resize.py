# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent import resize
from aliquot_agent.checkpoint import Growth, PreparedShare, decode, encode
from aliquot_agent.nodepolicy import ResizePolicy
from aliquot_agent.pods import digest
from aliquot_agent.resize import Reason, Refusal
from aliquot_api.config import OverQuota
from tests.unit.agent.shares import GIB, make_prepared, make_share
from tests.unit.agent.test_pods import make_pod

MIB = 1024**2
SHARE = make_share()
CLAIM = make_prepared(SHARE)


def pod(limit: str | None, name: str = "train", **changes: Any) -> Any:
    raw = make_pod(name, **changes)
    if limit is not None:
        raw["metadata"]["annotations"] = {"aliquot.dev/gpu-memory-limit": limit}
    found = digest(raw)
    assert found is not None
    return found


def test_the_annotation_names_a_container_or_means_all() -> None:
    assert resize.wish(CLAIM, SHARE, [pod("main=6Gi")]) == 6 * GIB
    assert resize.wish(CLAIM, SHARE, [pod("side=6Gi")]) is None
    assert resize.wish(CLAIM, SHARE, [pod("6Gi")]) == 6 * GIB
    assert resize.wish(CLAIM, SHARE, [pod(None)]) is None


@pytest.mark.parametrize("text", ["main=", "nobody=6Gi", "8000", "-1Gi", "six"])
def test_an_annotation_that_is_not_understood_is_refused_in_words(text: str) -> None:
    found = resize.wish(CLAIM, SHARE, [pod(text)])
    assert isinstance(found, Refusal)
    assert found.reason is Reason.NOT_UNDERSTOOD
    assert "aliquot.dev/gpu-memory-limit" in found.message


def test_pods_that_share_a_claim_must_agree() -> None:
    assert resize.wish(CLAIM, SHARE, [pod("6Gi"), pod("6144Mi", "other"), pod(None, "third")]) == 6 * GIB
    found = resize.wish(CLAIM, SHARE, [pod("6Gi"), pod("7Gi", "other")])
    assert isinstance(found, Refusal)
    assert found.reason is Reason.CONFLICT
    assert "6144Mi" in found.message
    assert "7168Mi" in found.message


def test_a_whole_gpu_has_no_limit() -> None:
    whole = make_share(whole=True)
    found = resize.wish(make_prepared(whole), whole, [pod("6Gi")])
    assert isinstance(found, Refusal)
    assert found.reason is Reason.WHOLE_GPU


@pytest.mark.parametrize(
    ("wished", "policy", "over_quota", "says"),
    [
        pytest.param(7 * GIB, ResizePolicy(grow=False), OverQuota.WARN, None, id="down is always allowed"),
        pytest.param(9 * GIB, ResizePolicy(), OverQuota.KILL, None, id="growth"),
        pytest.param(9 * GIB, ResizePolicy(grow=False), OverQuota.KILL, "resize.grow", id="no growth"),
        pytest.param(9 * GIB, ResizePolicy(), OverQuota.WARN, "overQuota kill", id="cannot be taken back"),
        pytest.param(
            9 * GIB, ResizePolicy(most_bytes=8 * GIB), OverQuota.EVICT, "resize.most", id="too much"
        ),
        pytest.param(
            8 * GIB,
            ResizePolicy(most_bytes=4 * GIB),
            OverQuota.KILL,
            None,
            id="what was consumed is not growth",
        ),
    ],
)
def test_the_node_says_what_it_allows(
    wished: int, policy: ResizePolicy, over_quota: OverQuota, says: str | None
) -> None:
    found = resize.refusal(SHARE, wished, policy=policy, over_quota=over_quota)
    assert (found is None) is (says is None)
    if found is not None and says is not None:
        assert says in found.message


def test_a_limit_within_the_claim_moves_at_once_and_back() -> None:
    lower = resize.settled(SHARE, 4 * GIB, in_force_bytes=8 * GIB)
    assert (lower.limit, lower.grant_bytes, lower.growth) == (4 * GIB, 0, Growth.NONE)
    again = resize.settled(lower, None, in_force_bytes=4 * GIB)
    assert again == SHARE


def test_growth_is_recorded_then_in_the_limit_then_given_up_once_it_is_free() -> None:
    asked = resize.asked(SHARE, 12 * GIB)
    assert (asked.limit, asked.taken_bytes, asked.growth) == (8 * GIB, 12 * GIB, Growth.ASKED)
    assert resize.settled(asked, 12 * GIB, in_force_bytes=8 * GIB) == asked
    held = resize.granted(asked)
    assert (held.limit, held.taken_bytes, held.growth) == (12 * GIB, 12 * GIB, Growth.HELD)
    assert resize.settled(held, 12 * GIB, in_force_bytes=12 * GIB) == held

    lower = resize.settled(held, 9 * GIB, in_force_bytes=12 * GIB)
    assert (lower.limit, lower.taken_bytes) == (9 * GIB, 12 * GIB)  # still in use, perhaps
    lower = resize.settled(lower, 9 * GIB, in_force_bytes=10 * GIB)
    assert (lower.limit, lower.taken_bytes) == (9 * GIB, 10 * GIB)
    lower = resize.settled(lower, 4 * GIB, in_force_bytes=4 * GIB)
    assert (lower.limit, lower.taken_bytes, lower.growth) == (4 * GIB, 8 * GIB, Growth.NONE)


def test_growth_that_was_asked_for_is_dropped_when_nobody_wishes_it_any_more() -> None:
    assert resize.settled(resize.asked(SHARE, 12 * GIB), None, in_force_bytes=8 * GIB) == SHARE
    held = resize.granted(resize.asked(SHARE, 10 * GIB))
    more = resize.asked(held, 12 * GIB)
    assert resize.settled(more, 10 * GIB, in_force_bytes=10 * GIB) == held


def test_growth_that_is_withdrawn_leaves_the_quota_first() -> None:
    assert resize.withdrawn(SHARE) == SHARE
    assert resize.withdrawn(resize.asked(SHARE, 12 * GIB)) == SHARE
    held = resize.granted(resize.asked(SHARE, 12 * GIB))
    leaving = resize.withdrawn(held)
    assert (leaving.limit, leaving.taken_bytes, leaving.growth) == (8 * GIB, 12 * GIB, Growth.LEAVING)
    assert resize.settled(leaving, 12 * GIB, in_force_bytes=11 * GIB) == leaving
    assert resize.settled(leaving, 12 * GIB, in_force_bytes=8 * GIB) == SHARE
    more = resize.asked(held, 14 * GIB)  # part of it is in the quota
    assert resize.withdrawn(more).growth is Growth.LEAVING


MIBS = st.integers(min_value=1, max_value=64).map(lambda count: count * GIB)


@st.composite
def shares(draw: st.DrawFn) -> PreparedShare:
    share = make_share(memory_bytes=draw(MIBS))
    for _ in range(draw(st.integers(0, 3))):
        bigger = share.taken_bytes + draw(MIBS)
        step = draw(st.sampled_from(["ask", "grant", "withdraw", "lower"]))
        if step == "ask":
            share = resize.asked(share, bigger)
        elif step == "grant" and share.growth is Growth.ASKED:
            share = resize.granted(share)
        elif step == "withdraw":
            share = resize.withdrawn(share)
        elif step == "lower":
            share = resize.settled(share, draw(MIBS), in_force_bytes=share.taken_bytes)
    return share


@given(share=shares(), wished=st.none() | MIBS, force=MIBS)
def test_a_limit_is_never_above_what_is_accounted_for(
    share: PreparedShare, wished: int | None, force: int
) -> None:
    asked = share.growth is Growth.ASKED  # and in no quota yet
    most_in_force = max(share.limit, share.memory_bytes) if asked else share.taken_bytes
    in_force = min(force, most_in_force)
    for after in (
        resize.settled(share, wished, in_force_bytes=in_force),
        resize.withdrawn(share),
        resize.dropped(share) if share.growth is Growth.ASKED else share,
    ):
        assert after.limit <= after.taken_bytes
        assert after.memory_bytes == share.memory_bytes
        assert (after.grant_bytes > 0) is (after.growth is not Growth.NONE)
    settled = resize.settled(share, wished, in_force_bytes=in_force)
    if settled.growth is not Growth.ASKED:
        assert settled.taken_bytes >= in_force  # what is in force stays accounted for


def test_grants_are_kept_in_the_checkpoint_and_older_ones_are_read() -> None:
    claim = make_prepared(resize.granted(resize.asked(SHARE, 12 * GIB)))
    assert decode(encode(claim), uid=claim.uid) == claim
    assert decode(encode(CLAIM), uid=CLAIM.uid).shares[0].growth is Growth.NONE


def listed(
    uid: str, memory: str, *, device: str = "gpu-a", driver: str = "gpu.aliquot.dev"
) -> dict[str, Any]:
    result = {"driver": driver, "pool": "node-1", "device": device, "consumedCapacity": {"memory": memory}}
    return {"metadata": {"uid": uid}, "status": {"allocation": {"devices": {"results": [result]}}}}


def test_allocated_is_what_the_server_and_the_node_know_together() -> None:
    known = [
        listed("uid-a", "8Gi"),  # prepared as well
        listed("uid-b", "2Gi"),
        listed("uid-c", "4Gi", device="gpu-b"),
        listed("uid-d", "4Gi", driver="other"),
        {"metadata": {"uid": "uid-e"}},
    ]
    gone = make_prepared(make_share(share="x", memory_bytes=GIB), uid="uid-gone")
    found = resize.allocated_bytes(known, [CLAIM, gone], pool="node-1", device="gpu-a")
    assert found == 11 * GIB


def test_what_is_leaving_counts_first_then_the_largest_grants() -> None:
    small, big = (resize.granted(resize.asked(SHARE, size * GIB)) for size in (9, 12))
    leaving = resize.withdrawn(replace(big, grant_bytes=2 * GIB))
    grown = [(CLAIM, small), (CLAIM, big), (CLAIM, leaving)]
    assert resize.in_the_way(grown, 2 * GIB) == [(CLAIM, leaving)]
    assert resize.in_the_way(grown, 3 * GIB) == [(CLAIM, leaving), (CLAIM, big)]
    assert len(resize.in_the_way(grown, 100 * GIB)) == 3
