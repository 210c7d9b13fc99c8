# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field
from typing import Any

import pytest

from aliquot_agent import books, enforce
from aliquot_agent.books import Holder
from aliquot_agent.checkpoint import Growth
from aliquot_agent.enforce import Enforcer, Record
from aliquot_agent.errors import ApiError
from aliquot_agent.executioner import Target
from aliquot_agent.nodepolicy import NamespacePolicy, NodePolicy
from aliquot_agent.pods import Pod
from aliquot_api.config import OverQuota
from tests.unit.agent.shares import GIB, make_prepared, make_share

MIB = 1024**2
POD = Pod(uid="uid-p", namespace="team-a", name="train", grace_s=5)
HOG = Holder(host_pid=999_999_001, start_ticks=7, held_bytes=9 * GIB, slot=None)
TARGET = Target(HOG.host_pid, HOG.start_ticks)


@dataclass
class Recorder:
    """Killer, API and events that keep what they were asked for."""

    ended: list[tuple[Target, float, bool]] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    errors: list[ApiError] = field(default_factory=list)
    gone: bool = False

    def end(self, target: Target, *, grace_s: float, ask: bool = True) -> bool:
        if not self.gone:
            self.ended.append((target, grace_s, ask))
        return not self.gone

    def condemned(self, target: Target) -> bool:
        return target in [each for each, *_ in self.ended]

    def evict(self, namespace: str, name: str, uid: str) -> None:
        self.evicted.append(uid)
        if self.errors:
            raise self.errors.pop(0)

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        self.deleted.append(uid)

    def pod(
        self, *, namespace: str, name: str, uid: str, reason: str, message: str, warning: bool = True
    ) -> None:
        assert (namespace, name, uid, reason) == ("team-a", "train", "uid-p", "GPUMemoryOverQuota")
        self.told.append(message)


class Scene:
    """One share of 8 GiB under a policy."""

    def __init__(self, policy: OverQuota = OverQuota.KILL, **changes: Any) -> None:
        self.recorder = Recorder()
        self.record = Record()
        self.policy = NodePolicy(policy=policy, **changes)
        self.enforcer = Enforcer(
            killer=self.recorder, api=self.recorder, events=self.recorder, policy=lambda: self.policy
        )

    def look(self, *holders: Holder, limit: int = 8 * GIB, pod: Pod | None = POD, **share: Any) -> bool:
        found = books.compare(holders, context_estimate_bytes=0, tolerance_bytes=64 * MIB)
        return self.enforcer.judge(
            self.record,
            claim=make_prepared(),
            share=make_share(**share),
            limit_bytes=limit,
            holders=holders,
            found=found,
            pod=lambda _: pod,
        )


def test_the_second_look_in_a_row_counts() -> None:
    scene = Scene()
    assert [scene.look(HOG), scene.look(), scene.look(HOG)] == [False, False, False]
    assert scene.recorder.ended == []
    assert scene.look(HOG)
    assert scene.recorder.ended == [(TARGET, 0.5, True)]
    (message,) = scene.recorder.told
    assert "holds 9216Mi of GPU memory and may hold 8192Mi" in message
    assert "outside the library" in message
    assert scene.record.killed == 1


def test_a_share_within_the_tolerance_is_left_alone() -> None:
    scene = Scene()
    near = Holder(host_pid=1, start_ticks=1, held_bytes=8 * GIB + 64 * MIB, slot=None)
    assert not any(scene.look(near) for _ in range(5))
    scene.policy = NodePolicy(tolerance_bytes=63 * MIB)
    assert [scene.look(near) for _ in range(2)] == [False, True]


def test_a_process_is_ended_once() -> None:
    scene = Scene()
    for _ in range(5):
        scene.look(HOG)
    assert len(scene.recorder.ended) == 1
    assert len(scene.recorder.told) == 1


def test_one_that_ended_by_itself_is_no_news() -> None:
    scene = Scene()
    scene.recorder.gone = True
    for _ in range(3):
        scene.look(HOG)
    assert (scene.recorder.told, scene.record.killed) == ([], 0)


def test_warn_does_nothing_but_warn_now_and_then() -> None:
    scene = Scene(OverQuota.WARN)
    for _ in range(70):
        scene.look(HOG)
    assert scene.recorder.ended == []
    assert scene.record.warned == 2
    assert all("nothing is done" in message for message in scene.recorder.told)


def test_growth_that_was_withdrawn_is_taken_back_whatever_the_policy_became() -> None:
    scene = Scene(OverQuota.WARN)
    for _ in range(2):
        scene.look(HOG, growth=Growth.LEAVING)
    assert scene.recorder.ended == [(TARGET, 0.5, True)]


def test_evict_asks_at_once_and_kills_after_the_grace() -> None:
    scene = Scene(OverQuota.EVICT)
    for _ in range(4):
        scene.look(HOG)
    assert scene.recorder.ended == [(TARGET, 5, False)]
    scene.enforcer.evict_waiting()
    assert scene.recorder.evicted == ["uid-p"]
    assert scene.record.evicted == 1


def test_a_pod_does_not_choose_an_endless_grace() -> None:
    scene = Scene(OverQuota.EVICT)
    patient = Pod(uid="uid-p", namespace="team-a", name="train", grace_s=86_400)
    for _ in range(2):
        scene.look(HOG, pod=patient)
    assert scene.recorder.ended[0][1] == 30


def test_an_eviction_that_a_budget_forbids_is_told() -> None:
    scene = Scene(OverQuota.EVICT)
    scene.recorder.errors = [ApiError(status=429, message="Cannot evict pod: budget")]
    for _ in range(2):
        scene.look(HOG)
    scene.enforcer.evict_waiting()
    assert scene.recorder.evicted == ["uid-p"]
    assert scene.recorder.deleted == []
    assert "its disruption budget forbids it" in scene.recorder.told[-1]


def test_a_budget_is_passed_over_where_the_node_says_so() -> None:
    scene = Scene(OverQuota.EVICT, respect_budgets=False)
    scene.recorder.errors = [ApiError(status=429, message="Cannot evict pod: budget")]
    for _ in range(2):
        scene.look(HOG)
    scene.enforcer.evict_waiting()
    assert scene.recorder.deleted == ["uid-p"]


def test_a_server_that_is_away_for_a_moment_is_asked_again() -> None:
    scene = Scene(OverQuota.EVICT)
    scene.recorder.errors = [ApiError(status=0, message="no answer")]
    for _ in range(2):
        scene.look(HOG)
    scene.enforcer.evict_waiting()
    assert scene.recorder.evicted == ["uid-p", "uid-p"]


def test_an_eviction_that_found_no_room_is_asked_for_at_the_next_offence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enforce, "_WAITING", 1)
    scene = Scene(OverQuota.EVICT)
    other = Pod(uid="uid-q", namespace="team-a", name="other")
    monkeypatch.setattr(scene.recorder, "pod", lambda **_: None)
    hogs = [Holder(host_pid=number, start_ticks=7, held_bytes=9 * GIB, slot=None) for number in range(4)]
    scene.look(hogs[0])
    scene.look(hogs[1])
    scene.look(hogs[2], pod=other)  # no room
    scene.enforcer.evict_waiting()
    scene.look(hogs[3], pod=other)
    scene.enforcer.evict_waiting()
    assert scene.recorder.evicted == ["uid-p", "uid-q"]


def test_where_the_pod_is_not_known_its_offender_is_killed() -> None:
    scene = Scene(OverQuota.EVICT)
    for _ in range(2):
        scene.look(HOG, pod=None)
    assert scene.recorder.ended == [(TARGET, 0.5, True)]


@pytest.mark.parametrize(
    ("by_class", "by_namespace", "by_claim", "counts"),
    [
        pytest.param("", None, "", OverQuota.KILL, id="the node's default"),
        pytest.param("", OverQuota.WARN, "", OverQuota.WARN, id="namespace before node"),
        pytest.param("evict", OverQuota.WARN, "", OverQuota.EVICT, id="class before namespace"),
        pytest.param("warn", OverQuota.EVICT, "", OverQuota.WARN, id="class before namespace, also milder"),
        pytest.param("", OverQuota.WARN, "evict", OverQuota.EVICT, id="claim makes it stricter"),
        pytest.param("kill", None, "warn", OverQuota.KILL, id="claim makes nothing milder"),
    ],
)
def test_whose_policy_counts(
    by_class: str, by_namespace: OverQuota | None, by_claim: str, counts: OverQuota
) -> None:
    node = NodePolicy(namespaces={"team-a": NamespacePolicy(over_quota=by_namespace)})
    share = make_share(class_over_quota=by_class, claim_over_quota=by_claim)
    assert enforce.policy_of(share, node=node, namespace="team-a") is counts
