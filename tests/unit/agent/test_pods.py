# SPDX-License-Identifier: Apache-2.0
import threading
from collections.abc import Iterator
from typing import Any

from aliquot_agent.errors import ApiError
from aliquot_agent.pods import Pod, Pods, digest
from tests.unit.agent.shares import make_prepared, make_share

ID = "ab" * 32


def make_pod(name: str = "train", **changes: Any) -> dict[str, Any]:
    """A pod as the API server has it, with two GPU containers on one claim of the webhook's."""
    pod: dict[str, Any] = {
        "metadata": {"namespace": "team-a", "name": name, "uid": f"uid-{name}", "resourceVersion": "7"},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "resourceClaims": [{"name": "aliquot", "resourceClaimTemplateName": "t"}],
            "containers": [
                {"name": "main", "resources": {"claims": [{"name": "aliquot", "request": "main"}]}},
                {"name": "side", "resources": {"claims": [{"name": "aliquot", "request": "side"}]}},
                {"name": "plain"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "aliquot", "resourceClaimName": "claim-a"}],
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{ID}"}, {"name": "side"}],
        },
    }
    pod.update(changes)
    return pod


def test_a_pod_is_known_by_what_counts() -> None:
    pod = digest(make_pod())
    assert pod is not None
    assert (pod.uid, pod.namespace, pod.name, pod.grace_s) == ("uid-train", "team-a", "train", 5)
    assert pod.container_names == {ID: "main"}
    assert pod.claims == {"aliquot": "claim-a"}
    claim = make_prepared()
    assert pod.holds(claim)
    assert pod.containers_of(claim, make_share(request="side")) == ("side",)
    assert not pod.holds(make_prepared(name="other"))
    assert not pod.holds(make_prepared(namespace="team-b"))


def test_a_container_without_a_request_has_all_of_its_claim() -> None:
    raw = make_pod()
    raw["spec"]["containers"][0]["resources"]["claims"] = [{"name": "aliquot"}]
    raw["spec"]["initContainers"] = [{"name": "init", "resources": raw["spec"]["containers"][0]["resources"]}]
    pod = digest(raw)
    assert pod is not None
    assert pod.containers_of(make_prepared(), make_share(request="any")) == ("init", "main")


def test_a_pod_without_claims_is_not_kept() -> None:
    assert digest(make_pod(spec={"containers": [{"name": "main"}]})) is None


def test_a_claim_by_name_needs_no_status() -> None:
    raw = make_pod(status={})
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "claim-a"}]
    pod = digest(raw)
    assert pod is not None
    assert pod.holds(make_prepared())


class FakeStream:
    """Events that are given once; then it waits for the end."""

    def __init__(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        self.events = events
        self.versions: list[str] = []
        self.ended = threading.Event()

    def follow(self, resource_version: str, *, timeout_s: int) -> Iterator[tuple[str, dict[str, Any]]]:
        self.versions.append(resource_version)
        while self.events:
            yield self.events.pop(0)
        self.ended.wait(timeout_s)

    def stop(self) -> None:
        self.ended.set()


class FakeApi:
    """One list, after `failures`."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        self.stream = FakeStream(list(events))
        self.failures = [ApiError(status=503, message="busy")]
        self.claim_uid = "uid-a"
        self.claims_read = 0

    def list_pods(self, node: str) -> tuple[list[dict[str, Any]], str]:
        if self.failures:
            raise self.failures.pop()
        return [make_pod("one"), make_pod("two")], "5"

    def get_pod(self, namespace: str, name: str) -> dict[str, Any]:
        if name != "late":
            raise ApiError(status=404, message="not found")
        context = {"securityContext": {"privileged": True}}
        return make_pod(name, spec={"containers": [{"name": "main"}, {"name": "root", **context}]})

    def get_claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.claims_read += 1
        holders = [{"resource": "pods", "name": "two", "uid": "uid-two"}]
        metadata = {"namespace": namespace, "name": name, "uid": self.claim_uid}
        return {"metadata": metadata, "status": {"reservedFor": holders}}

    def pod_watch(self, node: str) -> FakeStream:
        return self.stream


def test_the_book_follows_the_server() -> None:
    annotated = make_pod("two")
    annotated["metadata"]["annotations"] = {"aliquot.dev/gpu-memory-limit": "4Gi"}
    api = FakeApi(("MODIFIED", annotated), ("DELETED", make_pod("one")), ("ADDED", make_pod("three")))
    changes = threading.Semaphore(0)
    pods = Pods(api=api, node="node-1", changed=changes.release)
    pods.start()
    for _ in range(4):
        assert changes.acquire(timeout=10)
    pods.stop()
    assert api.stream.versions[0] == "5"
    assert [pod.name for pod in pods.holders(make_prepared())] == ["three", "two"]
    assert [pod.memory_limit for pod in pods.annotated()] == ["4Gi"]
    assert pods.by_uid("uid-one") is None
    two = pods.by_uid("uid-two")
    assert isinstance(two, Pod)


def test_an_event_that_changes_nothing_wakes_nobody() -> None:
    woken: list[int] = []
    pods = Pods(api=FakeApi(), node="node-1", changed=lambda: woken.append(1))
    pods.learn("ADDED", make_pod())
    changed = make_pod()
    changed["status"]["phase"] = "Running"
    pods.learn("MODIFIED", changed)
    assert woken == [1]


def test_a_pod_that_reaches_beyond_a_share_is_known_from_the_watch_and_else_read() -> None:
    book = Pods(api=FakeApi(), node="node-1", guarded=("/data/aliquot",))
    pod = make_pod()
    pod["spec"]["initContainers"] = [{"name": "setup", "securityContext": {"privileged": True}}]
    book.replace([pod, make_pod("honest")])
    book.learn("ADDED", mounting := make_pod("mounting"))
    assert book.privilege("team-a", "mounting", "uid-mounting") == ""
    mounting["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/data"}}]
    book.learn("MODIFIED", mounting)

    assert book.privilege("team-a", "mounting", "uid-mounting").startswith("spec.volumes[0].hostPath.path")
    setup = "spec.initContainers[0].securityContext.privileged"
    assert book.privilege("team-a", "train", "uid-train").startswith(setup)
    assert book.privilege("team-a", "honest", "uid-honest") == ""
    late = "spec.containers[1].securityContext.privileged"
    assert book.privilege("team-a", "late", "uid-late").startswith(late)
    assert book.privilege("team-a", "late", "uid-of-the-one-before") == ""
    assert book.privilege("team-a", "gone", "uid-gone") == ""


def test_a_claim_made_anew_under_the_same_name_is_another_claim() -> None:
    api = FakeApi()
    pods = Pods(api=api, node="node-1")
    pods.replace([make_pod("one"), make_pod("two")])
    before, now = make_prepared(uid="uid-of-before"), make_prepared()
    assert [pod.name for pod in pods.holders(before)] == ["one", "two"]  # nobody has said more than the name
    pods.ask()
    assert [pod.name for pod in pods.holders(before)] == ["one"]  # the claim is not reserved for it
    assert [pod.name for pod in pods.holders(now)] == ["one", "two"]
    pods.ask()
    assert api.claims_read == 1  # once for both, though the one that has it no more is not told by it
    pods.learn("MODIFIED", make_pod("two", status={}))  # the note outlives what the watch says
    pods.replace([make_pod("one"), make_pod("two")])
    assert [pod.name for pod in pods.holders(before)] == ["one"]


def test_the_claims_of_pods_that_do_not_run_yet_are_not_asked_for() -> None:
    api = FakeApi()
    pods = Pods(api=api, node="node-1")
    waiting = make_pod("two", status={})
    waiting["spec"]["resourceClaims"] = [{"name": "aliquot", "resourceClaimName": "claim-a"}]
    pods.replace([waiting])
    pods.ask()
    assert pods.holders(make_prepared(uid="uid-of-before"))
    assert pods.get_claim("team-a", "claim-a")["metadata"]["uid"] == "uid-a"  # as Prepare does
    assert not pods.holders(make_prepared(uid="uid-of-before"))


def test_who_a_claim_is_reserved_for_is_known_before_the_watch_shows_it() -> None:
    pods = Pods(api=FakeApi(), node="node-1")
    claim = make_prepared()
    assert pods.awaited(claim) == ()
    pods.get_claim("team-a", "claim-a")  # as Prepare does
    assert (pods.awaited(claim), pods.holders(claim)) == (("two",), ())
    assert pods.awaited(make_prepared(uid="uid-of-before")) == ()
    pods.learn("ADDED", make_pod("two"))
    assert pods.awaited(claim) == ()
    assert [pod.name for pod in pods.holders(claim)] == ["two"]
    pods.learn("DELETED", make_pod("two"))
    assert (pods.awaited(claim), pods.holders(claim)) == ((), ())
