# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from aliquot_agent import report
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.errors import ApiError
from aliquot_agent.region import Usage
from aliquot_agent.report import Reporter
from aliquot_agent.watcher import Damage, Observation

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
        self.reporter = Reporter(api=self.api, node="node-1", observations=lambda: self.seen, interval_s=15)

    def at(self, now_s: float, *seen: Observation) -> str | None:
        self.seen = list(seen)
        return self.reporter.report_one(now_s=now_s)


def test_the_status_names_the_share_and_its_numbers() -> None:
    seen = observation("u", used=3, denied=2, processes=1)
    body = report.build(seen.claim, [seen])
    assert body["metadata"] == {"name": "claim-u", "namespace": "team-a", "uid": "u"}
    (device,) = body["status"]["devices"]
    assert {key: device[key] for key in ("driver", "pool", "device", "shareID")} == {
        "driver": "gpu.aliquot.dev",
        "pool": "node-1",
        "device": "gpu-a",
        "shareID": "share-u",
    }
    assert device["data"] == {"limit": LIMIT, "used": 3, "peak": 3, "denied": 2, "processes": 1}
    assert [(condition["type"], condition["status"]) for condition in device["conditions"]] == [
        ("Ready", "True")
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


def test_a_claim_is_written_at_once_and_then_once_per_interval() -> None:
    scene = Scene()
    assert scene.at(0, observation("u")) == "u"
    assert scene.at(14, observation("u", used=LIMIT)) is None
    assert scene.at(15, observation("u", used=LIMIT)) == "u"


def test_the_claim_that_waited_longest_comes_first() -> None:
    scene = Scene()
    order = [
        scene.at(float(now), observation("a", used=now * 100 * MIB), observation("b")) for now in (0, 1, 20)
    ]
    assert order == ["a", "b", "a"]


def test_a_failed_write_is_tried_again_after_the_interval() -> None:
    scene = Scene()
    scene.api.failure = ApiError(status=503, message="busy")
    scene.at(0, observation("u"))
    assert scene.api.written == []
    assert scene.at(1, observation("u")) is None
    scene.at(16, observation("u"))
    assert [name for name, _ in scene.api.written] == ["claim-u"]


def test_a_damaged_ledger_is_a_condition_while_it_lasts() -> None:
    good = observation("u")
    damaged = replace(good, damage=Damage(message="header is damaged", since="2026-02-03T04:05:06Z"))
    (device,) = report.build(damaged.claim, [damaged])["status"]["devices"]
    ready, damage = device["conditions"]
    assert (ready["type"], ready["status"]) == ("Ready", "True")
    assert (damage["type"], damage["status"]) == ("LedgerDamaged", "True")
    assert damage["message"].startswith("header is damaged")
    assert damage["lastTransitionTime"] == "2026-02-03T04:05:06Z"
    scene = Scene()
    assert [scene.at(0, good), scene.at(20, damaged), scene.at(40, damaged), scene.at(60, good)] == [
        "u",
        "u",
        None,
        "u",
    ]


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
