# SPDX-License-Identifier: Apache-2.0
"""The deleting half of the template protocol, and both halves against each other."""

import copy
import os
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import pytest

from aliquot_controller.templates import TemplateCollector
from aliquot_webhook.kube import ApiError
from aliquot_webhook.templates import Templates, TemplateUnavailable, collection, timestamp
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.test_templates import GRACE_S, START, a_template, path

PODS = "/api/v1/namespaces/team-a/pods"
Part = TypeVar("Part")
Server = TypeVar("Server", bound=FakeApi)


class Bed(Generic[Server]):
    """A fake server, both halves, one clock."""

    def __init__(self, api: Server) -> None:
        self.api = api
        self.now = START
        self.webhook = self.replica()
        self.collector = TemplateCollector(api=self.api, now=lambda: self.now)

    def replica(self, grace_s: float = GRACE_S) -> Templates:
        return Templates(api=self.api, grace_s=grace_s, most_per_namespace=5, now=lambda: self.now)

    def exists(self) -> bool:
        return path(a_template()) in self.api.objects

    def admit(self, webhook: Templates | None = None) -> None:
        (webhook or self.webhook).ensure("team-a", a_template(), dry_run=False)

    def persist(self, name: str) -> None:
        claim = {"name": "aliquot", "resourceClaimTemplateName": a_template().name}
        self.api.put(f"{PODS}/{name}", {"metadata": {"name": name}, "spec": {"resourceClaims": [claim]}})


def test_an_unused_template_goes_after_the_grace_period_and_not_before() -> None:
    bed = Bed(FakeApi())
    bed.admit()
    bed.now += timedelta(seconds=GRACE_S + 1)
    assert bed.collector.collect() == 0
    bed.now += timedelta(seconds=1)
    assert bed.collector.collect() == 1
    assert not bed.exists()


def test_a_template_that_a_pod_names_stays() -> None:
    bed = Bed(FakeApi())
    bed.admit()
    bed.persist("a")
    bed.now += timedelta(days=10)
    assert bed.collector.collect() == 0
    del bed.api.objects[f"{PODS}/a"]
    assert bed.collector.collect() == 1


def test_a_pod_of_another_namespace_does_not_count() -> None:
    bed = Bed(FakeApi())
    bed.admit()
    bed.persist("a")
    bed.api.objects["/api/v1/namespaces/team-b/pods/a"] = bed.api.objects.pop(f"{PODS}/a")
    bed.now += timedelta(days=10)
    assert bed.collector.collect() == 1


def test_a_use_between_look_and_deletion_saves_it() -> None:
    bed = Bed(FakeApi())
    bed.admit()
    bed.now += timedelta(seconds=GRACE_S + 2)
    original = bed.api.list_all

    def list_all(path: str, query: dict[str, str]) -> tuple[list[Any], str]:
        answer = original(path, query)
        if path == PODS:
            bed.admit()  # refreshes: the pod itself comes later
        return answer

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # the moment of the race
    assert bed.collector.collect() == 0
    assert bed.exists()


def test_a_template_without_a_readable_stamp_goes_an_hour_after_its_creation() -> None:
    bed = Bed(FakeApi())
    metadata = {"name": "x", "namespace": "team-a", "creationTimestamp": timestamp(START)}
    bed.api.put(f"{collection('team-a')}/x", {"metadata": metadata})
    assert bed.collector.collect() == 0
    bed.now += timedelta(hours=1, seconds=1)
    assert bed.collector.collect() == 1


def test_one_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    bed = Bed(FakeApi())
    bed.admit()
    bed.webhook.ensure("team-a", a_template(5), dry_run=False)
    bed.api.forbidden.add(("DELETE", a_template().name))
    bed.now += timedelta(days=1)

    assert bed.collector.collect() == 1
    assert bed.exists()


def test_a_list_that_cannot_be_read_deletes_nothing() -> None:
    bed = Bed(FakeApi())
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


class Interleaved(FakeApi):
    """Lets others act before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self.meanwhile()
        return super().call(*args, **kwargs)

    def list_all(self, *args: Any, **kwargs: Any) -> Any:
        self.meanwhile()
        return super().list_all(*args, **kwargs)


class Model:
    """Everybody who takes part, and the moves that each can make at any time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bed = Bed(Interleaved())
        graces = (GRACE_S, GRACE_S, 3 * GRACE_S)  # in the middle of a change of the setting
        self.replicas = [self.bed.replica(grace_s) for grace_s in graces]
        self.collectors = [TemplateCollector(api=self.bed.api, now=lambda: self.bed.now) for _ in range(2)]
        self.busy: list[object] = []
        self.arriving: list[tuple[datetime, str]] = []
        self.arrived: list[str] = []
        self.bed.api.meanwhile = self.meanwhile

    def meanwhile(self) -> None:
        if len(self.busy) < 4 and self.chance.random() < 0.5:
            self.anything()

    def anything(self) -> None:
        move = self.chance.choice([self.admit, self.admit, self.leave, self.watch, self.collect, self.wait])
        move()

    def admit(self) -> None:
        """The pod appears at any time until the server's request time-out, or never."""
        replica = self.idle(self.replicas)
        if replica is None:
            return
        self.busy.append(replica)
        try:
            replica.ensure("team-a", a_template(), dry_run=False)
        except TemplateUnavailable:
            return
        finally:
            self.busy.remove(replica)
        if self.chance.random() < 0.8:
            due = self.bed.now + timedelta(seconds=self.chance.randrange(60))
            self.arriving.append((due, f"pod-{self.chance.random()}"))

    def collect(self) -> None:
        collector = self.idle(self.collectors)
        if collector is not None:
            self.busy.append(collector)
            collector.collect()
            self.busy.remove(collector)

    def wait(self) -> None:
        # A webhook answers within seconds, so long times pass between admissions only. The races are near the
        # end of the stamp.
        short, long = [1.0, 30.0, 45.0], [GRACE_S / 3, GRACE_S - 30, GRACE_S - 10, GRACE_S, GRACE_S * 3]
        choices = [1.0, 2.0] if self.busy else short if self.arriving else short + long
        self.let_pass(timedelta(seconds=self.chance.choice(choices)))

    def let_pass(self, time: timedelta) -> None:
        target = self.bed.now + time
        for due, name in sorted(each for each in self.arriving if each[0] <= target):
            self.arriving.remove((due, name))
            self.bed.persist(name)
            self.arrived.append(name)
            self.check()
        self.bed.now = target

    def leave(self) -> None:
        if self.arrived:
            del self.bed.api.objects[f"{PODS}/{self.arrived.pop()}"]

    def watch(self) -> None:
        objects = [each for key, each in self.bed.api.objects.items() if "/resourceclaimtemplates/" in key]
        self.chance.choice(self.replicas).replace(copy.deepcopy(objects))

    def idle(self, parts: list[Part]) -> Part | None:
        return next((part for part in self.chance.sample(parts, len(parts)) if part not in self.busy), None)

    def check(self) -> None:
        assert self.bed.exists() or not self.arrived, "an admitted pod has no template"


@pytest.mark.parametrize("seed", range(int(os.environ.get("ALIQUOT_TEMPLATE_MODELS", "300"))))
def test_no_admitted_pod_is_stranded_and_nothing_stays_whatever_the_order(seed: int) -> None:
    """Three webhooks whose watches lag and whose graces differ, two collectors, pods that appear up to a
    minute after their admission or never; before each call to the server anybody may do anything."""
    model = Model(seed)
    for _ in range(40):
        model.anything()
        model.check()
    model.bed.api.meanwhile = lambda: None
    model.let_pass(timedelta(minutes=2))
    model.check()
    while model.arrived:
        model.leave()
    model.bed.now += timedelta(seconds=GRACE_S * 3 + 2)
    model.collectors[0].collect()
    assert not model.bed.exists()


def test_the_end_of_a_stamp_second_by_second() -> None:
    """An admission around the end of the stamp, a look of the controller some time later, a pod that arrives
    before it, after it, or at the last moment."""
    for before_end_s in range(-6, 150, 6):
        for look_after_s in range(0, 160, 7):
            for arrives_after_s in (0, 20, 40, 59):
                bed = Bed(FakeApi())
                bed.admit()
                bed.now += timedelta(seconds=GRACE_S - before_end_s)
                bed.admit()
                answered = bed.now
                looks = [(look_after_s, "look"), (arrives_after_s, "arrive"), (arrives_after_s + 1, "look")]
                for after_s, move in sorted(looks):
                    bed.now = answered + timedelta(seconds=after_s)
                    if move == "look":
                        bed.collector.collect()
                    else:
                        bed.persist("pod")
                        assert bed.exists(), (before_end_s, look_after_s, arrives_after_s)
                assert bed.exists()
