# SPDX-License-Identifier: Apache-2.0
"""What a namespace may have: AliquotBudgets, and the ResourceQuotas that HAMi's users have already.

Several hold all at once, like ResourceQuotas. Kept from two watches, so that a namespace without any costs
nothing.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, obj, text
from aliquot_webhook.amounts import Thing
from aliquot_webhook.policy import Policy


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `limit` of `thing`, because `source` says so."""

    thing: Thing
    limit: int
    source: str


def budget_caps(budget: JsonObject) -> tuple[Cap, ...]:
    """The caps of an AliquotBudget. What is not readable is nothing that the CRD's schema lets through."""
    name = text(dig(budget, "metadata", "name"))
    spec = obj(budget.get("spec"))
    return _caps({thing: spec.get(thing) for thing in Thing}, source=f"AliquotBudget {name}")


def quota_caps(quota: JsonObject, policy: Policy) -> tuple[Cap, ...]:
    """The caps in a ResourceQuota that limits our resources (HAMi: `limits.`; Kubernetes: `requests.`).

    A quota with scopes is left out: which pods it counts cannot be told from a claim.
    """
    spec = obj(quota.get("spec"))
    if spec.get("scopes") or spec.get("scopeSelector"):
        return ()
    resources = policy.resources
    things = {
        resources.count: (Thing.GPUS, 1),
        resources.memory: (Thing.MEMORY, policy.memory_factor * quantity.MIB),
        resources.cores: (Thing.CORES, 1),
    }
    source = f"ResourceQuota {text(dig(quota, 'metadata', 'name'))}"
    caps: list[Cap] = []
    for key, value in obj(spec.get("hard")).items():
        section, _, resource = key.partition(".")
        if section in ("limits", "requests") and resource in things:
            thing, unit = things[resource]
            caps += [
                Cap(thing=thing, limit=cap.limit * unit, source=f"{source}, {key}")
                for cap in _caps({thing: value}, source="")
            ]
    return tuple(caps)


def _caps(stated: Mapping[Thing, object], *, source: str) -> tuple[Cap, ...]:
    caps: list[Cap] = []
    for thing, value in stated.items():
        if value is None:
            continue
        shown = value if isinstance(value, str) else str(value)
        try:
            limit = quantity.parse(shown, field=thing)
        except InvalidInput:
            limit = 0  # fail closed: somebody wanted a limit
        caps.append(Cap(thing=thing, limit=limit, source=source))
    return tuple(caps)


class Budgets:
    """All caps by namespace. Two sinks feed it, one for each kind of object."""

    def __init__(self, *, policy: Policy) -> None:
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str, str], tuple[Cap, ...]] = {}
        self._by_namespace: Mapping[str, tuple[Cap, ...]] = {}
        self.budgets = Source(owner=self, kind="budget", read=budget_caps)
        self.quotas = Source(owner=self, kind="quota", read=lambda quota: quota_caps(quota, policy))

    def caps(self, namespace: str) -> tuple[Cap, ...]:
        """What holds in `namespace`; nothing for most."""
        return self._by_namespace.get(namespace, ())

    def namespaces(self) -> tuple[str, ...]:
        """Those with a cap."""
        return tuple(self._by_namespace)

    def update(self, kind: str, objects: Mapping[tuple[str, str], tuple[Cap, ...]], *, whole: bool) -> None:
        """These objects of `kind` are new or different; if `whole`, they are all."""
        with self._lock:
            if whole:
                self._objects = {key: caps for key, caps in self._objects.items() if key[0] != kind}
            for (namespace, name), caps in objects.items():
                self._objects.pop((kind, namespace, name), None)
                if caps:
                    self._objects[(kind, namespace, name)] = caps
            by_namespace: dict[str, tuple[Cap, ...]] = {}
            for (_, namespace, _), caps in sorted(self._objects.items()):
                by_namespace[namespace] = by_namespace.get(namespace, ()) + caps
            self._by_namespace = by_namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A sink for one kind of object."""

    owner: Budgets
    kind: str
    read: Callable[[JsonObject], tuple[Cap, ...]]

    def replace(self, objects: Sequence[JsonObject]) -> None:
        """These are all."""
        self.owner.update(self.kind, {_key(each): self.read(each) for each in objects}, whole=True)

    def upsert(self, changed: JsonObject) -> None:
        """This one is new or different."""
        self.owner.update(self.kind, {_key(changed): self.read(changed)}, whole=False)

    def remove(self, gone: JsonObject) -> None:
        """This one is gone."""
        self.owner.update(self.kind, {_key(gone): ()}, whole=False)


def _key(of: JsonObject) -> tuple[str, str]:
    return text(dig(of, "metadata", "namespace")), text(dig(of, "metadata", "name"))
