# SPDX-License-Identifier: Apache-2.0
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from aliquot_agent import report
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.errors import ApiError
from aliquot_agent.marks import LEDGER_DAMAGED, RESIZED, WITHIN_QUOTA, Mark
from aliquot_agent.picture import Observation
from aliquot_agent.region import Usage
from aliquot_agent.report import Reporter, compose
from tests.unit.agent.kit import wait_for

MIB = 1024**2
LIMIT = 8000 * MIB


def observation(uid: str, *, used: int = 0, denied: int = 0, processes: int = 0) -> Observation:
    share = PreparedShare(
        share=f"share-{uid}",
        request="main",
        pool="node-1",
        device="gpu-a",
        gpu_uuid="GPU-a",
        whole=False,
        memory_bytes=LIMIT,
        cores_percent=0,
        shares=1,
        context_estimate_bytes=0,
    )
    claim = PreparedClaim(
        uid=uid,
        namespace="team-a",
        name=f"claim-{uid}",
        boot_id="boot",
        prepared_at="2026-01-02T03:04:05Z",
        library="/lib",
        shares=(share,),
    )
    usage = Usage(LIMIT, used, peak_bytes=used, denied=denied, processes=processes)
    return Observation(claim=claim, share=share, usage=usage)


HEALTHY = Mark("Healthy", True, "NoFault", "", "2026-01-01T00:00:00Z")


class FakeApi:
    """Statuses by claim; `failure` is raised once, `refusal` each time."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, Any]]] = []
        self.failure: ApiError | None = None
        self.refusal: ApiError | None = None

    def apply_claim_status(self, namespace: str, name: str, body: dict[str, Any], *, manager: str) -> None:
        failure, self.failure = self.failure or self.refusal, None
        if failure is not None:
            raise failure
        assert (namespace, manager) == ("team-a", "aliquot-agent-node-1")
        self.written.append((name, body["status"]["devices"][0]["data"]))


class Scene:
    """A reporter with a clock of its own."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.seen: list[Observation] = []
        self.healthy = HEALTHY
        self.resized: Mark | None = None
        self.reporter = Reporter(
            api=self.api,
            node="node-1",
            observations=lambda: self.seen,
            health=lambda uuid: self.healthy,
            resizes=lambda share: self.resized,
            interval_s=15,
        )

    def at(self, now_s: float, *seen: Observation) -> str | None:
        self.seen = list(seen)
        return self.reporter.report_one(now_s=now_s)


def test_the_status_names_the_share_and_its_numbers() -> None:
    seen = observation("u", used=3, denied=2, processes=1)
    body = report.build(seen.claim, [compose(seen, healthy=HEALTHY, resized=None)])
    assert body["metadata"] == {"name": "claim-u", "namespace": "team-a", "uid": "u"}
    (device,) = body["status"]["devices"]
    assert {key: device[key] for key in ("driver", "pool", "device", "shareID")} == {
        "driver": "gpu.aliquot.dev",
        "pool": "node-1",
        "device": "gpu-a",
        "shareID": "share-u",
    }
    assert device["data"] == {
        "limit": LIMIT,
        "used": 3,
        "peak": 3,
        "denied": 2,
        "throttled_s": 0.0,
        "processes": 1,
    }
    assert [(condition["type"], condition["status"]) for condition in device["conditions"]] == [
        ("Ready", "True"),
        ("Healthy", "True"),
        ("WithinQuota", "True"),
    ]


@pytest.mark.parametrize(
    ("change", "written"),
    [
        pytest.param({"used": 63 * MIB}, False, id="little more use"),
        pytest.param({"used": 65 * MIB}, True, id="64 MiB more use"),
        pytest.param({"denied": 1}, True, id="a refusal"),
        pytest.param({"processes": 1}, True, id="a process"),
    ],
)
def test_only_notable_changes_are_written(change: dict[str, int], written: bool) -> None:
    scene = Scene()
    assert scene.at(0, observation("u")) == "u"
    assert (scene.at(100, observation("u", **change)) == "u") is written


def test_what_was_no_news_once_hides_none_that_comes_later() -> None:
    scene = Scene()
    little, more = observation("u", used=10 * MIB), observation("u", used=65 * MIB)
    assert scene.at(0, observation("u")) == "u"
    assert [scene.at(now_s, little) for now_s in (20, 21, 22)] == [None, None, None]
    assert scene.at(23, more) == "u"
    assert [scene.at(now_s, more) for now_s in (40, 41)] == [None, None]
    scene.healthy = Mark("Healthy", False, "Xid79", "fell off the bus", "2026-01-02T00:00:00Z")
    assert scene.at(42, more) == "u"


def test_a_claim_is_written_at_once_and_then_once_per_interval() -> None:
    scene = Scene()
    assert scene.at(0, observation("u")) == "u"
    assert scene.at(14, observation("u", used=LIMIT)) is None
    assert scene.at(15, observation("u", used=LIMIT)) == "u"


def test_news_that_had_to_wait_is_written_when_nothing_changes_any_more() -> None:
    scene = Scene()
    first, other = observation("u"), observation("v")
    more = observation("u", used=65 * MIB)
    assert [scene.at(now_s, first, other) for now_s in (0, 1)] == ["u", "v"]
    seen = [scene.at(now_s, more, other) for now_s in (2, 3, 14, 15, 16)]
    assert seen == [None, None, None, "u", None]


def test_the_claim_that_waited_longest_comes_first() -> None:
    scene = Scene()
    order = [
        scene.at(float(now), observation("a", used=now * 100 * MIB), observation("b")) for now in (0, 1, 20)
    ]
    assert order == ["a", "b", "a"]


def test_a_node_writes_two_reports_in_a_second_at_most() -> None:
    scene = Scene()
    scene.seen = [observation(f"u{number}") for number in range(20)]
    began_s = time.monotonic()
    scene.reporter.start()
    try:
        wait_for(lambda: len(scene.api.written) >= 4)
        took_s = time.monotonic() - began_s
    finally:
        scene.reporter.stop()
    assert took_s > 1.4


def test_a_failed_write_is_tried_again_after_the_interval() -> None:
    scene = Scene()
    scene.api.failure = ApiError(status=503, message="busy")
    scene.at(0, observation("u"))
    assert scene.api.written == []
    assert scene.at(1, observation("u")) is None
    scene.at(16, observation("u"))
    assert [name for name, _ in scene.api.written] == ["claim-u"]


def test_faults_are_conditions_while_they_last() -> None:
    good = observation("u")
    damage = Mark(LEDGER_DAMAGED, True, "HeaderOverwritten", "header is damaged", "2026-02-03T04:05:06Z")
    damaged = replace(good, faults=(damage,))
    body = report.build(good.claim, [compose(damaged, healthy=HEALTHY, resized=None)])
    condition = body["status"]["devices"][0]["conditions"][-1]
    assert condition == {
        "type": "LedgerDamaged",
        "status": "True",
        "reason": "HeaderOverwritten",
        "message": "header is damaged",
        "lastTransitionTime": "2026-02-03T04:05:06Z",
    }
    scene = Scene()
    assert [scene.at(0, good), scene.at(20, damaged), scene.at(40, damaged), scene.at(60, good)] == [
        "u",
        "u",
        None,
        "u",
    ]


def test_a_share_above_its_quota_says_so_and_since_when_it_is_within() -> None:
    over = Mark(WITHIN_QUOTA, True, "OverQuota", "holds too much", "2026-02-03T04:05:06Z")
    seen = replace(observation("u"), faults=(over,))
    marks = compose(seen, healthy=HEALTHY, resized=None).marks
    (within,) = [mark for mark in marks if mark.kind == WITHIN_QUOTA]
    assert (within.status, within.reason, within.since) == (False, "OverQuota", "2026-02-03T04:05:06Z")
    seen = replace(observation("u"), within_since="2026-03-03T04:05:06Z")
    (within,) = [
        mark for mark in compose(seen, healthy=HEALTHY, resized=None).marks if mark.kind == WITHIN_QUOTA
    ]
    assert (within.status, within.since) == (True, "2026-03-03T04:05:06Z")


def test_a_sick_gpu_and_a_resize_are_written() -> None:
    scene = Scene()
    assert scene.at(0, observation("u")) == "u"
    scene.healthy = Mark("Healthy", False, "Xid79", "fell off the bus", "2026-02-03T04:05:06Z")
    assert scene.at(20, observation("u")) == "u"
    scene.resized = Mark(RESIZED, False, "NoRoom", "no room", "2026-02-03T04:05:06Z")
    assert scene.at(40, observation("u")) == "u"
    assert scene.at(60, observation("u")) is None


def test_words_of_any_length_are_cut() -> None:
    fault = Mark(LEDGER_DAMAGED, True, "X", "x" * 40_000, "2026-02-03T04:05:06Z")
    seen = replace(observation("u"), faults=(fault,))
    body = report.build(seen.claim, [compose(seen, healthy=HEALTHY, resized=None)])
    assert len(body["status"]["devices"][0]["conditions"][-1]["message"]) == 1000


def test_all_conditions_together_are_no_more_than_the_server_takes() -> None:
    kinds = (LEDGER_DAMAGED, "ShimMissing", "BooksDiffer", WITHIN_QUOTA)
    faults = tuple(Mark(kind, True, "X", "", "2026-02-03T04:05:06Z") for kind in kinds)
    resized = Mark(RESIZED, True, "Applied", "", "2026-02-03T04:05:06Z")
    marks = compose(replace(observation("u"), faults=faults), healthy=HEALTHY, resized=resized).marks
    assert len(marks) == len({mark.kind for mark in marks}) <= 8


def test_a_paced_tenant_is_written_now_and_then() -> None:
    def throttled(seconds: int) -> Observation:
        seen = observation("u")
        return replace(seen, usage=replace(seen.usage, throttled_ns=seconds * 10**9))

    scene = Scene()
    written = [scene.at(20.0 * step, throttled(step * 20)) for step in range(8)]
    assert written == ["u", None, None, None, "u", None, None, None]


def test_a_claim_whose_report_is_refused_is_left_alone_for_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.api.refusal = ApiError(status=422, message="too long")
    tries = [now for now in range(1500) if scene.at(now, observation("u")) is not None]
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == [30, 60, 120, 240, 300, 300, 300]
    assert len(caplog.records) == 1
    scene.api.refusal = ApiError(status=422, message="another reason")
    scene.at(tries[-1] + 300, observation("u"))
    assert len(caplog.records) == 2

    scene.api.refusal = None
    scene.at(3000, observation("u"))
    assert scene.at(3015, observation("u", used=LIMIT)) == "u"


def test_a_refused_claim_does_not_hold_up_others() -> None:
    scene = Scene()
    scene.api.refusal = ApiError(status=422, message="too long")
    scene.at(0, observation("bad"))
    scene.api.refusal = None
    assert scene.at(1, observation("bad"), observation("good")) == "good"
