# SPDX-License-Identifier: Apache-2.0
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from aliquot_agent import outside
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.claims import ClaimRef
from aliquot_agent.devices import device_name
from aliquot_agent.errors import ApiError, Refused
from aliquot_agent.files import Step, no_step
from aliquot_agent.grower import Grower
from aliquot_agent.nodepolicy import NodePolicy, ResizePolicy
from aliquot_agent.picture import Observation, Picture
from aliquot_agent.pods import Pod, Wanted
from aliquot_agent.region import Usage
from aliquot_api.config import OverQuota
from tests.unit.agent.kit import GIB, NODE, FakeGpus, FakeServer, Node, make_claim, result

SETTLE_S = 5.0


class Cluster:
    """The API server, the scheduler's view of the one GPU, and an agent that can be started anew."""

    def __init__(self, node: Node, *, step: Step = no_step) -> None:
        self.node = node
        self.step = step
        self.gpu = node.gpus.gpus[0]
        self.policy = NodePolicy()
        self.limits: dict[str, str] = {}
        """Annotation by claim name: each claim has a pod of its name."""
        self.now_s = 100.0
        self.published_bytes = 24 * GIB
        self.publishing = True
        self.away = False
        self.told: list[tuple[str, str, str]] = []
        self.in_force: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """A new agent: it knows what is on disk."""
        self.claims = self.node.claims(step=self.step)
        self.grower = Grower(
            api=self,
            node=NODE,
            claims=self.claims,
            pods=self,
            events=self,
            policy=lambda: self.policy,
            picture=self.picture,
            room=lambda device: 24 * GIB,
            publish=self.publish,
            settle_s=SETTLE_S,
            monotonic_s=lambda: self.now_s,
        )

    def add(self, name: str, size: str, **config: Any) -> ClaimRef:
        """The scheduler allocates a claim."""
        return self.node.server.add(make_claim(result(self.gpu, memory=size), name=name, **config))

    def publish(self) -> None:
        if self.publishing:
            device = device_name(self.gpu.uuid)
            self.published_bytes = 24 * GIB - outside.grants(self.claims.prepared()).get(device, 0)

    def list_claims(self) -> list[dict[str, Any]]:
        if self.away:
            raise ApiError(status=503, message="away")
        return list(self.node.server.claims.values())

    def list_slices(self, node: str) -> tuple[list[dict[str, Any]], str]:
        if self.away:
            raise ApiError(status=503, message="away")
        capacity = {"memory": {"value": f"{self.published_bytes // 1024**2}Mi"}}
        return [{"spec": {"devices": [{"name": device_name(self.gpu.uuid), "capacity": capacity}]}}], "1"

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        return (
            Pod(
                uid=f"pod-{claim.name}",
                namespace=claim.namespace,
                name=claim.name,
                memory_limit=self.limits.get(claim.name),
                containers={"main": (Wanted(claim="gpu", request="main"),)},
                claims={"gpu": claim.name},
            ),
        )

    def annotated(self) -> tuple[Pod, ...]:
        return tuple(
            pod for claim in self.claims.prepared() for pod in self.holders(claim) if pod.memory_limit
        )

    def pod(self, *, name: str, reason: str, message: str, **_: Any) -> None:
        self.told.append((name, reason, message))

    def share(self, ref: ClaimRef) -> PreparedShare:
        (claim,) = [claim for claim in self.claims.prepared() if claim.uid == ref.uid]
        return claim.shares[0]

    def picture(self) -> Picture:
        """As if the watcher had just looked: quotas follow the checkpoint, `in_force` holds them up."""
        seen = []
        for claim in self.claims.prepared():
            share = claim.shares[0]
            limit = max(share.limit, self.in_force.get(claim.name, 0))
            seen.append(Observation(claim, share, Usage(limit, 0, 0, 0, 0)))
        return Picture(tuple(seen))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.now_s += 1
            self.grower.step()

    def reason(self, ref: ClaimRef) -> str:
        mark = self.grower.mark(self.share(ref).share)
        return mark.reason if mark is not None else ""

    def add_up(self) -> int:
        """What the shares of the GPU may hold together."""
        return sum(share.taken_bytes for claim in self.claims.prepared() for share in claim.shares)


@pytest.fixture
def cluster(node: Node) -> Cluster:
    return Cluster(node)


def test_a_limit_within_the_claim_moves_at_once(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.steps(1)
    assert cluster.reason(ref) == ""
    cluster.limits["a"] = "4Gi"
    cluster.steps(1)
    assert cluster.share(ref).limit == 4 * GIB
    cluster.in_force["a"] = 6 * GIB  # the use
    cluster.steps(1)
    assert cluster.reason(ref) == "InUse"
    cluster.in_force.clear()
    cluster.steps(1)
    assert cluster.reason(ref) == "Applied"
    del cluster.limits["a"]
    cluster.steps(1)
    assert cluster.share(ref).limit_bytes is None
    reasons = [reason for _, reason, _ in cluster.told]
    assert set(reasons) == {"GPUMemoryResized"}
    assert len(reasons) == len(set(cluster.told))


def test_what_was_admitted_with_the_annotation_is_no_resize(cluster: Cluster) -> None:
    cluster.limits["a"] = "8Gi"
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.steps(2)
    assert (cluster.reason(ref), cluster.told) == ("", [])


def test_growth_waits_until_nobody_else_can_have_the_memory(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "main=12Gi"
    cluster.publishing = False
    cluster.steps(20)
    assert (cluster.share(ref).growth, cluster.share(ref).limit) == (Growth.ASKED, 8 * GIB)
    assert cluster.reason(ref) == "Pending"
    cluster.publishing = True
    cluster.steps(2)
    assert cluster.published_bytes == 20 * GIB
    cluster.steps(int(SETTLE_S) - 1)
    assert cluster.share(ref).limit == 8 * GIB
    cluster.steps(2)
    assert (cluster.share(ref).growth, cluster.share(ref).limit) == (Growth.HELD, 12 * GIB)
    assert cluster.reason(ref) == "Applied"


def test_a_late_write_of_the_old_capacity_begins_the_settle_time_anew(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "12Gi"
    cluster.steps(3)
    assert cluster.published_bytes == 20 * GIB
    cluster.publishing, cluster.published_bytes = False, 24 * GIB
    cluster.steps(10)
    assert (cluster.share(ref).growth, cluster.share(ref).limit) == (Growth.ASKED, 8 * GIB)
    cluster.publishing = True
    cluster.steps(int(SETTLE_S))
    assert cluster.share(ref).limit == 8 * GIB
    cluster.steps(3)
    assert cluster.share(ref).limit == 12 * GIB


def test_a_claim_that_was_allocated_meanwhile_comes_first(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "20Gi"
    cluster.steps(3)
    assert cluster.share(ref).growth is Growth.ASKED
    cluster.add("b", "8Gi")  # decided on the old capacity, not prepared yet
    cluster.steps(10)
    assert (cluster.share(ref).growth, cluster.share(ref).limit) == (Growth.NONE, 8 * GIB)
    assert cluster.reason(ref) == "NoRoom"
    assert cluster.published_bytes == 24 * GIB
    assert ("a", "GPUMemoryResizeRefused") in [(name, reason) for name, reason, _ in cluster.told]


def test_growth_that_never_fits_is_refused_without_a_word_to_the_server(cluster: Cluster) -> None:
    for name in ("a", "b"):
        cluster.claims.prepare(cluster.add(name, "10Gi"))
    cluster.limits["a"] = "16Gi"
    cluster.away = True
    cluster.steps(3)
    (claim, _) = sorted(cluster.claims.prepared(), key=lambda claim: claim.name)
    mark = cluster.grower.mark(claim.shares[0].share)
    assert mark is not None
    assert (mark.status, mark.reason) == (False, "NoRoom")
    cluster.limits["a"] = "14Gi"
    cluster.away = False
    cluster.steps(10)
    assert cluster.add_up() == 24 * GIB


def test_growth_comes_once_there_is_room(cluster: Cluster) -> None:
    refs = [cluster.add(name, "10Gi") for name in ("a", "b")]
    for ref in refs:
        cluster.claims.prepare(ref)
    cluster.limits["a"] = "16Gi"
    cluster.steps(2)
    assert cluster.reason(refs[0]) == "NoRoom"
    cluster.claims.unprepare(refs[1].uid)
    del cluster.node.server.claims["team-a", "b"]
    cluster.steps(40)
    assert cluster.share(refs[0]).limit == 16 * GIB


def test_two_growths_do_not_get_the_same_memory(cluster: Cluster) -> None:
    refs = [cluster.add(name, "8Gi") for name in ("a", "b")]
    for ref in refs:
        cluster.claims.prepare(ref)
    cluster.limits.update(a="14Gi", b="14Gi")
    cluster.steps(60)
    assert sorted(cluster.share(ref).limit // GIB for ref in refs) == [8, 14]
    assert cluster.add_up() <= 24 * GIB


def test_growth_that_is_not_wished_any_more_comes_back(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "16Gi"
    cluster.steps(10)
    assert cluster.published_bytes == 16 * GIB
    cluster.in_force["a"] = 12 * GIB  # the use, with the limit going down
    del cluster.limits["a"]
    cluster.steps(3)
    assert (cluster.share(ref).limit, cluster.share(ref).taken_bytes) == (8 * GIB, 12 * GIB)
    cluster.in_force.clear()
    cluster.steps(2)
    assert (cluster.share(ref).taken_bytes, cluster.share(ref).growth) == (8 * GIB, Growth.NONE)
    assert cluster.published_bytes == 24 * GIB


def test_the_growth_of_a_claim_that_ends_comes_back_at_once(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "16Gi"
    cluster.steps(10)
    assert cluster.published_bytes == 16 * GIB
    cluster.claims.unprepare(ref.uid)
    cluster.steps(1)
    assert cluster.published_bytes == 24 * GIB


def test_a_late_claim_is_prepared_once_growth_has_left(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "20Gi"
    cluster.steps(10)
    cluster.in_force["a"] = 18 * GIB
    late = cluster.add("late", "8Gi")  # the scheduler was stopped between its choice and its write
    with pytest.raises(Refused, match="growth"):
        cluster.claims.prepare(late)
    assert (cluster.share(ref).growth, cluster.share(ref).limit) == (Growth.LEAVING, 8 * GIB)
    cluster.steps(1)
    assert cluster.reason(ref) == "Withdrawn"
    with pytest.raises(Refused, match="growth"):  # what it holds is still there
        cluster.claims.prepare(late)
    cluster.in_force.clear()
    cluster.steps(1)
    cluster.claims.prepare(late)
    assert cluster.add_up() == 16 * GIB
    cluster.steps(60)
    assert cluster.share(ref).limit == 8 * GIB
    assert cluster.reason(ref) == "NoRoom"


def test_prepare_waits_inside_the_call_for_growth_to_leave(node: Node) -> None:
    node.patience_s = 20
    cluster = Cluster(node)
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "20Gi"
    cluster.steps(10)
    assert cluster.share(ref).limit == 20 * GIB
    late = cluster.add("late", "8Gi")
    call = threading.Thread(target=lambda: cluster.claims.prepare(late))
    call.start()
    deadline_s = time.monotonic() + 20
    while call.is_alive():
        cluster.steps(1)
        call.join(0.1)
        assert time.monotonic() < deadline_s
    assert {claim.name for claim in cluster.claims.prepared()} == {"a", "late"}
    assert cluster.add_up() == 16 * GIB


def test_growth_that_no_quota_holds_yet_gives_way_at_once(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "20Gi"
    cluster.steps(2)
    assert cluster.share(ref).growth is Growth.ASKED
    cluster.claims.prepare(cluster.add("late", "8Gi"))
    assert cluster.share(ref).growth is Growth.NONE


def test_only_as_much_growth_as_is_needed_is_taken_back(cluster: Cluster) -> None:
    refs = {name: cluster.add(name, "2Gi") for name in ("a", "b")}
    for ref in refs.values():
        cluster.claims.prepare(ref)
    cluster.limits.update(a="4Gi", b="12Gi")
    cluster.steps(20)
    assert cluster.add_up() == 16 * GIB
    with pytest.raises(Refused):
        cluster.claims.prepare(cluster.add("late", "12Gi"))
    assert cluster.share(refs["a"]).growth is Growth.HELD
    assert cluster.share(refs["b"]).growth is Growth.LEAVING


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        pytest.param(NodePolicy(resize=ResizePolicy(grow=False)), "NotAllowed", id="no growth"),
        pytest.param(NodePolicy(resize=ResizePolicy(most_bytes=9 * GIB)), "NotAllowed", id="too much"),
        pytest.param(NodePolicy(policy=OverQuota.WARN), "NotAllowed", id="cannot be taken back"),
    ],
)
def test_node_policy_bounds_growth(cluster: Cluster, policy: NodePolicy, reason: str) -> None:
    cluster.policy = policy
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "12Gi"
    cluster.steps(10)
    assert cluster.reason(ref) == reason
    assert cluster.share(ref).limit_bytes is None
    cluster.policy = NodePolicy()
    cluster.steps(10)
    assert cluster.share(ref).limit == 12 * GIB


def test_a_wish_that_is_not_understood_changes_nothing(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "4Gi"
    cluster.steps(1)
    cluster.limits["a"] = "four"
    cluster.steps(3)
    assert (cluster.share(ref).limit, cluster.reason(ref)) == (4 * GIB, "NotUnderstood")
    assert sum(reason == "GPUMemoryResizeRefused" for _, reason, _ in cluster.told) == 1


def test_a_server_that_is_away_delays_growth_and_nothing_else(cluster: Cluster) -> None:
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "12Gi"
    cluster.away = True
    cluster.steps(3)
    assert (cluster.share(ref).growth, cluster.reason(ref)) == (Growth.NONE, "Pending")
    cluster.away = False
    cluster.steps(1)
    cluster.away = True
    cluster.steps(20)
    assert cluster.share(ref).growth is Growth.ASKED
    cluster.limits["a"] = "6Gi"
    cluster.steps(1)
    assert (cluster.share(ref).growth, cluster.share(ref).limit) == (Growth.NONE, 6 * GIB)


@pytest.mark.parametrize("steps_before", range(12))
def test_an_agent_that_is_restarted_at_any_step_of_growth_goes_on(node: Node, steps_before: int) -> None:
    cluster = Cluster(node)
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.limits["a"] = "20Gi"
    cluster.steps(steps_before)
    before = cluster.share(ref)
    cluster.restart()
    cluster.publish()
    assert cluster.share(ref) == before
    assert cluster.published_bytes == 24 * GIB - before.grant_bytes
    if before.growth is Growth.ASKED:
        cluster.steps(int(SETTLE_S) - 1)
        assert cluster.share(ref).limit == 8 * GIB  # it settles anew: nobody knows how long it was away
    cluster.steps(10)
    assert cluster.share(ref).limit == 20 * GIB


def test_growth_and_claims_that_race_never_add_up_to_more_than_there_is(node: Node) -> None:
    node.patience_s = 0
    cluster = Cluster(node)
    refs = [cluster.add(f"grower-{index}", "2Gi") for index in range(4)]
    for ref in refs:
        cluster.claims.prepare(ref)
    stop, most, problems = threading.Event(), [0], []

    def audit() -> None:
        while not stop.is_set():
            # A look at the directory is not of one moment: one that the next does not confirm saw two.
            first, second = cluster.add_up(), cluster.add_up()
            most[0] = max(most[0], min(first, second))

    def come_and_go() -> None:
        try:
            for index in range(25):
                late = cluster.add(f"late-{index}", "6Gi")
                try:
                    cluster.claims.prepare(late)
                except Refused:
                    continue
                finally:
                    del cluster.node.server.claims["team-a", f"late-{index}"]
                    cluster.claims.unprepare(late.uid)
        except BaseException as error:  # noqa: BLE001 # handed to the test's thread
            problems.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=audit), threading.Thread(target=come_and_go)]
    for thread in threads:
        thread.start()
    turn = 0
    while not stop.is_set():
        turn += 1
        for index in range(4):
            cluster.limits[f"grower-{index}"] = f"{2 + (turn + index) % 9}Gi"
        cluster.steps(3)
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert most[0] <= 24 * GIB


def test_the_policy_of_claim_and_class_is_kept(node: Node) -> None:
    kind = {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareConfig"}
    config = [
        {
            "source": source,
            "requests": [],
            "opaque": {"driver": "gpu.aliquot.dev", "parameters": {**kind, "overQuota": policy}},
        }
        for source, policy in (("FromClass", "warn"), ("FromClaim", "evict"))
    ]
    cluster = Cluster(node)
    ref = cluster.add("a", "8Gi", config=config)
    cluster.claims.prepare(ref)
    share = cluster.share(ref)
    assert (share.class_over_quota, share.claim_over_quota) == ("warn", "evict")
    assert replace(share, class_over_quota="").claim_over_quota == "evict"


def test_a_node_without_the_gpu_grows_nothing(node: Node) -> None:
    cluster = Cluster(Node(root=node.root, gpus=FakeGpus(gpus=node.gpus.gpus), server=FakeServer()))
    ref = cluster.add("a", "8Gi")
    cluster.claims.prepare(ref)
    cluster.grower._room = lambda device: None
    cluster.limits["a"] = "12Gi"
    cluster.steps(10)
    assert (cluster.share(ref).limit, cluster.reason(ref)) == (8 * GIB, "NoRoom")
