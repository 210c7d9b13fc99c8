# SPDX-License-Identifier: Apache-2.0
"""Claims that keep GPUs for pods that are gone."""

from typing import Any

import pytest

from aliquot_controller.stale import FINALIZER, StaleClaimFinder
from aliquot_webhook.kube import Keep
from aliquot_webhook.templates import ROOT
from tests.unit.webhook.fake_api import FakeApi

PATH = f"{ROOT}/namespaces/team-a/resourceclaims"
PODS = "/api/v1/namespaces/team-a/pods"
AFTER_S = 300.0


class Server(FakeApi):
    """Its claims have a status, which is written apart and kept with them."""

    def call(self, method: Any, path: str, **rest: Any) -> Any:
        return super().call(method, path.removesuffix("/status"), **rest)


class Bed:
    """A server, a clock, a finder and what it reported."""

    def __init__(self, *, may_release: bool = True) -> None:
        self.api = Server()
        self.time_s = 0.0
        self.reports: list[str] = []
        self.released = 0
        self.finder = StaleClaimFinder(
            api=self.api,
            after_s=AFTER_S,
            may_release=may_release,
            report=self._report,
            on_release=self._count,
            clock=lambda: self.time_s,
        )

    def _report(self, claim: Any, *, reason: str, message: str) -> None:
        self.reports.append(f"{reason} {claim['metadata']['name']}: {message}")

    def _count(self) -> None:
        self.released += 1

    def claim(
        self, name: str = "c", *, pods: tuple[str, ...] = (), owner: str = "", driver: str = "gpu.aliquot.dev"
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "namespace": "team-a", "finalizers": ["x", FINALIZER]}
        if owner:
            metadata["ownerReferences"] = [
                {"kind": "Pod", "name": f"pod-{owner}", "uid": owner, "controller": True}
            ]
        reserved = [{"resource": "pods", "name": f"pod-{uid}", "uid": uid} for uid in pods]
        allocation = {"devices": {"results": [{"driver": driver, "device": "gpu-0"}]}}
        return self.api.put(
            f"{PATH}/{name}",
            {"metadata": metadata, "status": {"reservedFor": reserved, "allocation": allocation}},
        )

    def pod(self, uid: str, phase: str = "Running") -> None:
        self.api.put(f"{PODS}/pod-{uid}", {"metadata": {"uid": uid}, "status": {"phase": phase}})

    def look_twice(self) -> int:
        self.finder.look()
        self.time_s += AFTER_S
        return self.finder.look()

    @property
    def status(self) -> Any:
        return self.api.objects[f"{PATH}/c"]["status"]


def test_a_claim_made_for_a_pod_that_is_gone_is_released_and_deleted() -> None:
    bed = Bed()
    bed.claim(pods=("1",), owner="1")
    assert bed.look_twice() == 0
    assert f"{PATH}/c" not in bed.api.objects
    assert bed.reports == ["StaleClaimReleased c: released: its pods (pod-1) are gone or have ended"]
    assert bed.released == 1


def test_a_claim_of_the_users_own_is_released_and_stays() -> None:
    bed = Bed()
    bed.claim(pods=("1", "2"))
    bed.pod("2", "Succeeded")
    assert bed.look_twice() == 0
    assert bed.status == {"reservedFor": None, "allocation": None}
    assert bed.api.objects[f"{PATH}/c"]["metadata"]["finalizers"] == ["x"]


def test_one_that_was_allocated_and_never_reserved_is_released() -> None:
    bed = Bed()
    bed.claim()
    assert bed.look_twice() == 0
    assert bed.released == 1


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
def test_a_claim_of_a_living_pod_is_left_alone_terminating_or_not(phase: str) -> None:
    bed = Bed()
    bed.claim(pods=("1", "2"))
    bed.pod("2", phase)
    bed.claim("owned", owner="2")
    bed.look_twice()
    assert bed.api.writes() == []


def test_other_drivers_and_other_consumers_are_none_of_our_business() -> None:
    bed = Bed()
    bed.claim(driver="nic.example", pods=("1",))
    group = bed.claim("group", pods=("1",))
    group["status"]["reservedFor"] = [{"apiGroup": "x", "resource": "groups", "uid": "3"}]
    bed.look_twice()
    assert bed.api.writes() == []


def test_it_waits_and_a_change_begins_the_wait_anew() -> None:
    bed = Bed()
    bed.claim(pods=("1",))
    bed.finder.look()
    bed.time_s += AFTER_S - 1
    bed.finder.look()
    bed.api.put(f"{PATH}/c", bed.api.objects[f"{PATH}/c"])
    bed.time_s += AFTER_S - 1
    bed.finder.look()
    assert bed.released == 0


def test_a_claim_that_changes_at_the_last_moment_is_left_alone() -> None:
    bed = Bed()
    bed.claim(pods=("1",))
    original = bed.api.list_all

    def list_all(path: str, query: Any, keep: Keep) -> Any:
        answer = original(path, query, keep)
        if path == PODS and bed.time_s:
            bed.api.put(f"{PATH}/c", bed.api.objects[f"{PATH}/c"])
        return answer

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # the moment of the race
    bed.look_twice()
    assert bed.released == 0
    assert bed.status["allocation"]


def test_a_dry_run_reports_once_and_counts_on() -> None:
    bed = Bed(may_release=False)
    bed.claim(pods=("1",))
    assert bed.look_twice() == 1
    assert bed.finder.look() == 1
    assert bed.api.writes() == []
    assert bed.reports == ["StaleClaim c: keeps GPUs although its pods (pod-1) are gone or have ended"]


def test_a_missing_permission_is_no_end_of_the_others() -> None:
    bed = Bed()
    bed.claim("a", pods=("1",))
    bed.claim("b", pods=("1",))
    bed.api.forbidden.add(("PATCH", "resourceclaims/a"))
    assert bed.look_twice() == 1
    assert bed.released == 1
