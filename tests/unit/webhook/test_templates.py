# SPDX-License-Identifier: Apache-2.0
"""The creating half of the template protocol."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from aliquot_api import names
from aliquot_webhook.claims import ClaimTemplate, DeviceRequest, covers
from aliquot_webhook.kube import ApiError
from aliquot_webhook.templates import Templates, TemplateUnavailable, collection, keep_until, timestamp
from tests.unit.webhook.fake_api import FakeApi

START = datetime(2027, 1, 1, tzinfo=UTC)
GRACE_S = 3600.0
MOST = 5


def a_template(memory_mib: int = 8192, *, is_judged: bool = False) -> ClaimTemplate:
    """As `rewrite` makes them."""
    request: DeviceRequest = {
        "name": "main",
        "exactly": {
            "deviceClassName": names.DEVICE_CLASS,
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [],
            "capacity": {"requests": {"memory": f"{memory_mib}Mi", "cores": "0"}},
        },
    }
    return ClaimTemplate(
        name=f"aliquot-1x{memory_mib}mi-0123456789abcdef",
        spec={"devices": {"requests": [request]}},
        is_judged=is_judged,
    )


class Bed:
    """Templates on a fake server, with a clock to turn."""

    def __init__(self, *, gate: bool = True) -> None:
        self.api = FakeApi(gate=gate)
        self.now = START
        self.written: list[str] = []
        self.templates = self.replica()

    def replica(self) -> Templates:
        return Templates(
            api=self.api,
            grace_s=GRACE_S,
            most_per_namespace=MOST,
            on_write=self.written.append,
            now=lambda: self.now,
        )

    def kept_for(self) -> timedelta:
        until = keep_until(self.api.objects[path(a_template())])
        assert until is not None
        return until - self.now

    def ensure(self, template: ClaimTemplate | None = None, *, dry_run: bool = False) -> None:
        self.templates.ensure("team-a", template or a_template(), dry_run=dry_run)


def path(template: ClaimTemplate) -> str:
    return f"{collection('team-a')}/{template.name}"


def test_a_new_spec_is_written_once_and_a_known_one_costs_no_call() -> None:
    bed = Bed()
    bed.ensure()
    live = bed.api.objects[path(a_template())]
    assert live["metadata"]["labels"] == {names.MANAGED_LABEL: "true"}
    assert live["metadata"]["annotations"] == {names.KEEP_UNTIL_ANNOTATION: "2027-01-01T01:00:01Z"}
    assert covers(live["spec"]["spec"], a_template().spec)

    calls = len(bed.api.calls)
    bed.now += timedelta(seconds=GRACE_S / 2)
    bed.ensure()
    assert len(bed.api.calls) == calls
    assert bed.written == ["create"]


def test_half_the_grace_later_its_use_is_written_before_the_answer() -> None:
    bed = Bed()
    bed.ensure()
    bed.now += timedelta(seconds=GRACE_S / 2 + 1)
    bed.ensure()

    assert bed.kept_for() == timedelta(seconds=GRACE_S + 1)
    assert bed.written == ["create", "refresh"]


def test_a_template_that_is_gone_at_its_refresh_is_made_again() -> None:
    bed = Bed()
    bed.ensure()
    bed.now += timedelta(seconds=GRACE_S)
    bed.api.objects.pop(path(a_template()))
    bed.ensure()

    assert path(a_template()) in bed.api.objects
    assert bed.written == ["create", "create"]


def test_one_that_another_replica_made_is_refreshed() -> None:
    bed = Bed()
    bed.ensure()
    bed.now += timedelta(seconds=GRACE_S)
    bed.replica().ensure("team-a", a_template(), dry_run=False)

    assert bed.kept_for() == timedelta(seconds=GRACE_S + 1)


def test_a_stamp_never_moves_back_whatever_the_replicas_believe() -> None:
    bed = Bed()
    bed.ensure()
    generous = Templates(api=bed.api, grace_s=10 * GRACE_S, most_per_namespace=MOST, now=lambda: bed.now)
    generous.ensure("team-a", a_template(), dry_run=False)
    assert bed.kept_for() == timedelta(seconds=10 * GRACE_S + 1)

    bed.now += timedelta(seconds=GRACE_S / 2 + 1)  # the first replica's copy is old, and its grace shorter
    bed.ensure()
    assert bed.kept_for() > timedelta(seconds=9 * GRACE_S)
    assert bed.written == ["create"]


def test_a_namespace_has_room_for_so_many_templates_and_others_are_not_concerned() -> None:
    bed = Bed()
    for index in range(MOST):
        bed.ensure(a_template(100 + index))
    with pytest.raises(TemplateUnavailable, match=r"namespace team-a has 5 .* no more than 5 are kept"):
        bed.ensure()
    bed.ensure(a_template(100))  # a known one
    bed.templates.ensure("team-b", a_template(), dry_run=False)
    bed.templates.remove(bed.api.objects.pop(path(a_template(100))))
    bed.ensure()


def test_a_dry_run_writes_nothing() -> None:
    bed = Bed()
    bed.ensure(dry_run=True)

    assert bed.api.calls == []


def test_many_equal_pods_at_once_make_one_write() -> None:
    bed = Bed()
    ready = threading.Barrier(16)

    def admit() -> None:
        ready.wait(10)
        bed.ensure()

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(admit) for _ in range(16)]:
            future.result(10)
    assert len(bed.api.writes()) == 1


def test_the_watch_makes_a_template_known_and_unknown() -> None:
    bed = Bed()
    bed.ensure()
    other = bed.replica()
    other.replace([bed.api.objects[path(a_template())]])
    calls = len(bed.api.calls)
    other.ensure("team-a", a_template(), dry_run=False)
    assert len(bed.api.calls) == calls

    other.remove(bed.api.objects.pop(path(a_template())))
    other.ensure("team-a", a_template(), dry_run=False)
    assert path(a_template()) in bed.api.objects


def test_a_namesake_with_other_content_is_refused_and_known_so() -> None:
    bed = Bed()
    bed.ensure(a_template(100))
    forged = bed.api.objects.pop(path(a_template(100)))
    forged["metadata"]["name"] = a_template().name
    bed.api.put(path(a_template()), forged)

    for _ in range(2):
        with pytest.raises(TemplateUnavailable, match="does not say what its name stands for"):
            bed.ensure()


@pytest.mark.parametrize("is_judged", [True, False])
def test_whether_claims_are_judged_when_they_are_made_is_part_of_the_content(is_judged: bool) -> None:
    """A namesake that somebody wrote before Aliquot was here must not free a budget's claims."""
    bed = Bed()
    bed.ensure(a_template(is_judged=is_judged))
    of_claims = bed.api.objects[path(a_template())]["spec"]["metadata"]
    assert (names.JUDGED_ANNOTATION in of_claims.get("annotations", {})) == is_judged
    bed.ensure(a_template(is_judged=is_judged))
    for replica in (bed.templates, bed.replica()):
        with pytest.raises(TemplateUnavailable, match="does not say what its name stands for"):
            replica.ensure("team-a", a_template(is_judged=not is_judged), dry_run=False)


def test_a_server_that_drops_capacity_is_noticed() -> None:
    with pytest.raises(TemplateUnavailable, match=names.CONSUMABLE_CAPACITY_GATE):
        Bed(gate=False).ensure()


def test_a_refused_write_says_what_the_server_said() -> None:
    bed = Bed()
    bed.api.forbidden.add(("POST", "resourceclaimtemplates"))

    with pytest.raises(TemplateUnavailable, match=r"team-a/aliquot-1x8192mi-\w+ cannot be .*forbidden"):
        bed.ensure()
    bed.api.forbidden.clear()
    bed.ensure()


def test_an_unreachable_server_is_worth_another_try() -> None:
    bed = Bed()
    bed.api.down = True

    with pytest.raises(TemplateUnavailable, match="connection refused; try again"):
        bed.ensure()


def test_one_that_appears_and_vanishes_for_ever_ends_in_a_refusal() -> None:
    bed = Bed()

    def call(method: str, path: str, **_: object) -> dict[str, object]:
        raise ApiError(status=409 if method == "POST" else 404, message="no")

    bed.api.call = call  # type: ignore[method-assign] # a failure that no state can bring about
    with pytest.raises(TemplateUnavailable, match="appears and vanishes"):
        bed.ensure()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"annotations": {names.KEEP_UNTIL_ANNOTATION: "2027-01-01T00:00:00Z"}}, START),
        ({"annotations": {names.KEEP_UNTIL_ANNOTATION: "soon"}}, None),
        ({"annotations": {names.KEEP_UNTIL_ANNOTATION: 5}}, None),
        ({}, None),
    ],
)
def test_until_when_a_template_stays(metadata: dict[str, object], expected: datetime | None) -> None:
    assert keep_until({"metadata": metadata}) == expected


def test_times_are_written_and_read_alike() -> None:
    assert keep_until({"metadata": {"annotations": {names.KEEP_UNTIL_ANNOTATION: timestamp(START)}}}) == START


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        ({"a": "8Gi", "b": 1}, {"a": "8192Mi"}, True),
        ({"a": ["100", {"x": 1, "y": 2}]}, {"a": ["0.1k", {"x": 1}]}, True),
        ({"a": "8Gi"}, {"a": "8191Mi"}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({}, {"a": 1}, False),
        (None, {"a": 1}, False),
        ({"a": "text"}, {"a": "other"}, False),
        ({"a": 1}, {"a": "1"}, False),
    ],
)
def test_covers(live: object, wanted: object, expected: bool) -> None:
    assert covers(live, wanted) is expected
