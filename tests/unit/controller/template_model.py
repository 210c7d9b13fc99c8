# SPDX-License-Identifier: Apache-2.0
"""A model of all who take part in the life of a template, and the moves that each can make at any time.

It runs the real classes, on a server in memory or on a real one.
"""

import copy
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from aliquot_api.wire import JsonObject
from aliquot_controller.templates import TemplateCollector
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.kube import ListApi
from aliquot_webhook.templates import Templates, TemplateUnavailable
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.test_templates import GRACE_S, START, a_template, path

NAMESPACE = "team-a"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
Part = TypeVar("Part")


class World(Protocol):
    """A server with one template on it, or none, and pods that name it."""

    namespace: str
    template: ClaimTemplate
    now: datetime

    @property
    def api(self) -> ListApi:
        """What the parts call."""

    def exists(self) -> bool:
        """Whether the template is there."""

    def templates(self) -> list[JsonObject]:
        """A list of it, as a watch would bring."""

    def persist(self, name: str) -> None:
        """An admitted pod appears."""

    def remove(self, name: str) -> None:
        """It goes."""


class Bed:
    """A world in memory, and one of each part."""

    def __init__(self, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.namespace = NAMESPACE
        self.template = a_template()
        self.now = START
        self.webhook = self.replica()
        self.collector = TemplateCollector(api=self.api, now=lambda: self.now)

    def replica(self, grace_s: float = GRACE_S) -> Templates:
        return Templates(api=self.api, grace_s=grace_s, most_per_namespace=5, now=lambda: self.now)

    def exists(self) -> bool:
        return path(a_template()) in self.api.objects

    def templates(self) -> list[JsonObject]:
        return [
            copy.deepcopy(each) for key, each in self.api.objects.items() if "/resourceclaimtemplates/" in key
        ]

    def admit(self, webhook: Templates | None = None) -> None:
        (webhook or self.webhook).ensure(NAMESPACE, a_template(), dry_run=False)

    def persist(self, name: str) -> None:
        claim = {"name": "aliquot", "resourceClaimTemplateName": a_template().name}
        self.api.put(f"{PODS}/{name}", {"metadata": {"name": name}, "spec": {"resourceClaims": [claim]}})

    def remove(self, name: str) -> None:
        del self.api.objects[f"{PODS}/{name}"]


class Interleaved:
    """Lets others act before each call."""

    def __init__(self, api: ListApi, meanwhile: Callable[[], None]) -> None:
        self._api = api
        self._meanwhile = meanwhile

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self._meanwhile()
        return self._api.call(*args, **kwargs)

    def list_all(self, *args: Any, **kwargs: Any) -> Any:
        self._meanwhile()
        return self._api.list_all(*args, **kwargs)


class Model:
    """Everybody who takes part, and the moves that each can make at any time."""

    def __init__(self, world: World, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.is_calm = False
        self.interleavings = 0
        api = Interleaved(world.api, self.meanwhile)
        graces = (GRACE_S, GRACE_S, 3 * GRACE_S)  # in the middle of a change of the setting
        self.replicas = [
            Templates(api=api, grace_s=grace_s, most_per_namespace=10**6, now=lambda: world.now)
            for grace_s in graces
        ]
        self.collectors = [TemplateCollector(api=api, now=lambda: world.now) for _ in range(2)]
        self.busy: list[object] = []
        self.arriving: list[tuple[datetime, str]] = []
        self.arrived: list[str] = []

    def run(self, moves: int) -> None:
        """Everybody does anything; then all pods go, and the template has to."""
        for _ in range(moves):
            self.anything()
            self.check()
        self.is_calm = True
        self.let_pass(timedelta(minutes=2))
        self.check()
        while self.arrived:
            self.leave()
        self.world.now += timedelta(seconds=GRACE_S * 3 + 2)
        self.collectors[0].collect()
        assert not self.world.exists(), "an unused template stays"

    def meanwhile(self) -> None:
        if not self.is_calm and len(self.busy) < 4 and self.chance.random() < 0.5:
            self.interleavings += 1
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
            replica.ensure(self.world.namespace, self.world.template, dry_run=False)
        except TemplateUnavailable:
            return
        finally:
            self.busy.remove(replica)
        if self.chance.random() < 0.8:
            due = self.world.now + timedelta(seconds=self.chance.randrange(60))
            self.arriving.append((due, f"pod-{self.chance.randrange(10**9)}"))

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
        target = self.world.now + time
        for due, name in sorted(each for each in self.arriving if each[0] <= target):
            self.arriving.remove((due, name))
            self.world.persist(name)
            self.arrived.append(name)
            self.check()
        self.world.now = target

    def leave(self) -> None:
        if self.arrived:
            self.world.remove(self.arrived.pop())

    def watch(self) -> None:
        self.chance.choice(self.replicas).replace(self.world.templates())

    def idle(self, parts: list[Part]) -> Part | None:
        return next((part for part in self.chance.sample(parts, len(parts)) if part not in self.busy), None)

    def check(self) -> None:
        assert not self.arrived or self.world.exists(), "an admitted pod has no template"
