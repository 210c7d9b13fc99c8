# SPDX-License-Identifier: Apache-2.0
"""The deleting half of the template protocol, and both halves against each other."""

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from aliquot_controller.templates import TemplateCollector
from aliquot_webhook.kube import ApiError
from aliquot_webhook.templates import Templates, collection, timestamp
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.test_templates import GRACE_S, START, a_template, path

PODS = "/api/v1/namespaces/team-a/pods"


class Bed:
    """A fake server, both halves, one clock."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.now = START
        self.webhook = self.replica()
        self.collector = TemplateCollector(api=self.api, grace_s=GRACE_S, now=lambda: self.now)

    def replica(self) -> Templates:
        return Templates(api=self.api, grace_s=GRACE_S, now=lambda: self.now)

    def exists(self) -> bool:
        return path(a_template()) in self.api.objects

    def admit(self, webhook: Templates | None = None) -> None:
        (webhook or self.webhook).ensure("team-a", a_template(), dry_run=False)

    def persist(self, name: str) -> None:
        claim = {"name": "aliquot", "resourceClaimTemplateName": a_template().name}
        self.api.put(f"{PODS}/{name}", {"metadata": {"name": name}, "spec": {"resourceClaims": [claim]}})


def test_an_unused_template_goes_after_the_grace_period_and_not_before() -> None:
    bed = Bed()
    bed.admit()
    bed.now += timedelta(seconds=GRACE_S)
    assert bed.collector.collect() == 0
    bed.now += timedelta(seconds=1)
    assert bed.collector.collect() == 1
    assert not bed.exists()


def test_a_template_that_a_pod_names_stays() -> None:
    bed = Bed()
    bed.admit()
    bed.persist("a")
    bed.now += timedelta(days=10)
    assert bed.collector.collect() == 0
    del bed.api.objects[f"{PODS}/a"]
    assert bed.collector.collect() == 1


def test_a_pod_of_another_namespace_does_not_count() -> None:
    bed = Bed()
    bed.admit()
    bed.persist("a")
    bed.api.objects["/api/v1/namespaces/team-b/pods/a"] = bed.api.objects.pop(f"{PODS}/a")
    bed.now += timedelta(days=10)
    assert bed.collector.collect() == 1


def test_a_use_between_look_and_deletion_saves_it() -> None:
    bed = Bed()
    bed.admit()
    bed.now += timedelta(seconds=GRACE_S + 1)
    original = bed.api.list_all

    def list_all(path: str, query: dict[str, str]) -> tuple[list[Any], str]:
        answer = original(path, query)
        if path == PODS:
            bed.admit()  # refreshes: the pod itself comes later
        return answer

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # the moment of the race
    assert bed.collector.collect() == 0
    assert bed.exists()


def test_a_template_without_a_readable_time_goes_by_its_creation() -> None:
    bed = Bed()
    metadata = {"name": "x", "namespace": "team-a", "creationTimestamp": timestamp(START)}
    bed.api.put(f"{collection('team-a')}/x", {"metadata": metadata})
    assert bed.collector.collect() == 0
    bed.now += timedelta(seconds=GRACE_S + 1)
    assert bed.collector.collect() == 1


def test_one_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    bed = Bed()
    bed.admit()
    bed.webhook.ensure("team-a", a_template(5), dry_run=False)
    bed.api.forbidden.add(("DELETE", a_template().name))
    bed.now += timedelta(days=1)

    assert bed.collector.collect() == 1
    assert bed.exists()


def test_a_list_that_cannot_be_read_deletes_nothing() -> None:
    bed = Bed()
    bed.admit()
    bed.now += timedelta(days=1)
    original = bed.api.list_all

    def list_all(path: str, query: dict[str, str]) -> tuple[list[Any], str]:
        if path == PODS:
            raise ApiError(status=403, message="pods is forbidden")
        return original(path, query)

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # a missing permission
    with pytest.raises(ApiError):
        bed.collector.collect()
    assert bed.exists()


@pytest.mark.parametrize("seed", range(200))
def test_no_admitted_pod_is_stranded_whatever_the_order(seed: int) -> None:
    """Three webhooks whose watches lag, pods that appear up to a minute after their admission, a
    collector that is interrupted between its look and its deletion, and leaps in time."""
    chance = random.Random(seed)
    bed = Bed()
    replicas = [bed.replica() for _ in range(3)]
    arriving: list[tuple[datetime, str]] = []
    arrived: list[str] = []

    def arrive(until: datetime) -> None:
        for due, name in [each for each in arriving if each[0] <= until]:
            arriving.remove((due, name))
            bed.persist(name)
            arrived.append(name)
            assert bed.exists(), f"{name} was admitted and has no template"

    def anything(depth: int = 0) -> None:
        action = chance.choice(["admit", "admit", "wait", "leave", "watch", "collect"])
        if action == "admit":
            bed.admit(chance.choice(replicas))
            arriving.append((bed.now + timedelta(seconds=chance.randrange(60)), f"pod-{chance.random()}"))
        elif action == "wait" and depth == 0:
            target = bed.now + timedelta(seconds=chance.choice([1, 30, GRACE_S / 3, GRACE_S, GRACE_S * 3]))
            arrive(target)
            bed.now = target
        elif action == "leave" and arrived:
            del bed.api.objects[f"{PODS}/{arrived.pop()}"]
        elif action == "watch":
            objects, _ = original(collection("team-a"), {})
            chance.choice(replicas).replace(objects)
        elif action == "collect" and depth == 0:
            bed.collector.collect()

    original = bed.api.list_all

    def list_all(path: str, query: dict[str, str]) -> tuple[list[Any], str]:
        answer = original(path, query)
        anything(depth=1)
        return answer

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # interleave
    for _ in range(60):
        anything()
        if arrived:
            assert bed.exists()
    arrive(bed.now + timedelta(minutes=2))
    bed.api.list_all = original  # type: ignore[method-assign] # calm again
    for name in arrived:
        del bed.api.objects[f"{PODS}/{name}"]
    bed.now += timedelta(seconds=GRACE_S * 2)
    bed.collector.collect()
    assert not bed.exists()
