# SPDX-License-Identifier: Apache-2.0
"""Which GPUs can serve a pod's claims, by the rules of the scheduler's allocator (KEP-4381, KEP-5075). Pure.

Answers for each GPU and request why not, in the order in which the allocator looks: selectors, taints, then
each capacity. On a node all requests must fit together.
"""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli import cel
from aliquot_cli.cards import CAPACITIES, Card, Taint, amount
from aliquot_cli.nodes import tolerated
from aliquot_cli.output import size

_MOST_STEPS: Final = 20_000


class Short(enum.StrEnum):
    """Why a GPU cannot serve a request; also the word for machines."""

    SELECTOR = "selector"
    TAINT = "taint"
    MEMORY = "memory"
    CORES = "cores"
    SHARES = "shares"
    WHOLE = "whole"
    """A whole GPU is wanted, and this one is shared already."""
    UNKNOWN = "unknown"
    """Its selector cannot be evaluated here."""


_CAPACITY: Final = {
    names.CAPACITY_MEMORY: Short.MEMORY,
    names.CAPACITY_CORES: Short.CORES,
    names.CAPACITY_SHARES: Short.SHARES,
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve a request: `exactly`, or one of `firstAvailable`."""

    device_class: str
    count: int
    wanted: Mapping[str, int]
    selectors: tuple[str, ...]
    tolerations: tuple[object, ...] = ()
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a claim."""

    name: str
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the GPUs of some requests share, or do not."""

    attribute: str
    requests: tuple[str, ...]
    distinct: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """What one claim asks for."""

    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One GPU, looked at for one request: why not, or nothing."""

    request: str
    card: Card
    short: Short | None
    words: str


@dataclass(frozen=True, slots=True)
class Placement:
    """What the allocator finds on one node."""

    fits: bool
    looks: tuple[Look, ...]
    complete: bool = True
    """False where the search was given up."""


def wish_of(spec: object) -> Wish:
    """The wish in a ResourceClaimSpec."""
    requests = []
    for each in map(obj, items(dig(spec, "devices", "requests"))):
        ways = items(each.get("firstAvailable")) or [each.get("exactly")]
        requests.append(Request(name=text(each.get("name")), ways=tuple(_way(obj(way)) for way in ways)))
    constraints = [
        Constraint(
            attribute=text(each.get("matchAttribute")) or text(each.get("distinctAttribute")),
            requests=tuple(map(text, items(each.get("requests")))),
            distinct="distinctAttribute" in each,
        )
        for each in map(obj, items(dig(spec, "devices", "constraints")))
    ]
    return Wish(requests=tuple(requests), constraints=tuple(constraints))


def _way(way: JsonObject) -> Way:
    capacities = dig(way, "capacity", "requests")
    count = way.get("count")
    return Way(
        device_class=text(way.get("deviceClassName")),
        count=count if isinstance(count, int) else 1,
        wanted={name: value for name in obj(capacities) if (value := amount(capacities, name)) is not None},
        selectors=tuple(text(dig(each, "cel", "expression")) for each in items(way.get("selectors"))),
        tolerations=tuple(items(way.get("tolerations"))),
        admin=way.get("adminAccess") is True,
    )


def place(wishes: Sequence[Wish], cards: Sequence[Card], classes: Mapping[str, Sequence[str]]) -> Placement:
    """What the allocator finds on a node with `cards`; `classes` are the selectors of each DeviceClass."""
    looks = [
        look
        for wish in wishes
        for request in wish.requests
        for card in cards
        for look in [_best(request, card, classes)]
    ]
    search = _Search(wishes=wishes, cards=cards, classes=classes)
    fits = search.run()
    return Placement(fits=fits, looks=tuple(looks), complete=search.steps < _MOST_STEPS)


def _best(request: Request, card: Card, classes: Mapping[str, Sequence[str]]) -> Look:
    """The least of the obstacles, over all ways of a request: one for other GPUs says least."""
    order = [Short.SELECTOR, Short.UNKNOWN, Short.TAINT, *_CAPACITY.values(), Short.WHOLE, None]
    found = [_look(request.name, way, card, classes) for way in request.ways]
    return max(found, key=lambda look: order.index(look.short))


def _look(request: str, way: Way, card: Card, classes: Mapping[str, Sequence[str]]) -> Look:
    short, words = _unwanted(way, card, classes) or _short_of(way, card) or (None, "")
    return Look(request=request, card=card, short=short, words=words)


def _unwanted(way: Way, card: Card, classes: Mapping[str, Sequence[str]]) -> tuple[Short, str] | None:
    """Obstacles that stay, whatever is taken."""
    if not card.published:
        return Short.SELECTOR, "it is not published"
    excluded = _excluded(way, card, classes)
    if excluded is not None:
        return excluded
    taint = next((each for each in card.taints if _keeps_away(each, way.tolerations)), None)
    if taint is not None:
        return Short.TAINT, f"it is tainted {taint.key}={taint.value}:{taint.effect}"
    return None


def _short_of(way: Way, card: Card) -> tuple[Short, str] | None:
    for name in CAPACITIES:
        if name not in card.published:
            continue
        needed = consumption(card, name, way.wanted.get(name))
        left = card.free(name)
        if needed is None or needed > left:
            return _too_little(way, card, name, needed, left)
    return None


def _excluded(way: Way, card: Card, classes: Mapping[str, Sequence[str]]) -> tuple[Short, str] | None:
    for expression in (*classes.get(way.device_class, ()), *way.selectors):
        try:
            if not cel.selects(expression, card.raw, driver=names.DRIVER):
                return Short.SELECTOR, f"the request wants {_short(expression)}"
        except cel.Failed as error:
            return Short.SELECTOR, f"its selector fails ({error}): {_short(expression)}"
        except cel.Unsupported as error:
            return Short.UNKNOWN, f"its selector cannot be evaluated here ({error}): {expression}"
    return None


def _short(expression: str) -> str:
    """A selector without the words that all of ours have."""
    plain = re.sub(r"\.\?(\w+)\.orValue\([^)]*\)", r".\1", expression)
    return plain.replace(f'device.attributes["{names.DRIVER}"].', "").replace(
        f'device.capacity["{names.DRIVER}"].', "capacity "
    )


def _too_little(way: Way, card: Card, name: str, needed: int | None, left: int) -> tuple[Short, str]:
    shown = size if name == names.CAPACITY_MEMORY else str
    total = card.published[name]
    if name == names.CAPACITY_MEMORY and name not in way.wanted and card.shares:
        return Short.WHOLE, f"a whole GPU is wanted, and {len(card.shares)} shares are on it"
    if needed is None:
        return _CAPACITY[
            name
        ], f"{shown(way.wanted[name])} {name} wanted, and it never has more than {shown(total)}"
    return _CAPACITY[name], f"{shown(needed)} {name} wanted, {shown(left)} of {shown(total)} free"


def _keeps_away(taint: Taint, tolerations: Sequence[object]) -> bool:
    as_written = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    return taint.effect in ("NoSchedule", "NoExecute") and not tolerated(tolerations, as_written)


def consumption(card: Card, name: str, wanted: int | None) -> int | None:
    """What a request consumes of a capacity: its policy rounds it; None where that cannot be (KEP-5075)."""
    total = card.published[name]
    policy = dig(card.raw, "capacity", name, "requestPolicy")
    if policy is None:
        return total
    if wanted is None:
        return amount(policy, "default")
    values = [
        value for each in items(dig(policy, "validValues")) if (value := amount({"": each}, "")) is not None
    ]
    if values:
        return next((value for value in values if value >= wanted), None)
    span = obj(policy).get("validRange")
    if span is None:
        return wanted if wanted <= total else None
    least, step = amount(span, "min") or 0, amount(span, "step") or 1
    most = amount(span, "max")
    rounded = max(wanted, least)
    rounded = least - (least - rounded) // step * step if rounded > least else least
    return rounded if rounded <= (total if most is None else min(most, total)) else None


class _Search:
    """Depth first, the first complete solution wins: as the allocator does, within a number of steps."""

    def __init__(
        self, *, wishes: Sequence[Wish], cards: Sequence[Card], classes: Mapping[str, Sequence[str]]
    ) -> None:
        self.steps = 0
        self._wishes = wishes
        self._cards = cards
        self._classes = classes
        self._left = [{name: card.free(name) for name in card.published} for card in cards]
        self._needs: dict[tuple[int, int], dict[str, int] | None] = {}

    def run(self) -> bool:
        """Whether everything fits at once."""
        todo = [(number, request) for number, wish in enumerate(self._wishes) for request in wish.requests]
        return self._next(todo, {})

    def _next(self, todo: Sequence[tuple[int, Request]], chosen: dict[tuple[int, str], list[Card]]) -> bool:
        if not todo:
            return True
        (number, request), *rest = todo
        for way in request.ways:
            for cards in self._picks(way, 0, []):
                picked = {**chosen, (number, request.name): list(cards)}
                if self._agree(number, request.name, cards, chosen) and self._next(rest, picked):
                    return True
                if self.steps >= _MOST_STEPS:
                    return False
        return False

    def _picks(self, way: Way, start: int, picked: list[Card]) -> Iterator[list[Card]]:
        """Every choice of `count` different GPUs, each with its capacity taken while it is looked at."""
        if len(picked) == way.count:
            yield picked
            return
        for index in range(start, len(self._cards)):
            self.steps += 1
            if self.steps >= _MOST_STEPS:
                return
            need, left = self._need(way, index), self._left[index]
            if need is None or any(value > left[name] for name, value in need.items()):
                continue
            for name, value in need.items():
                left[name] -= value
            yield from self._picks(way, index + 1, [*picked, self._cards[index]])
            for name, value in need.items():
                left[name] += value

    def _need(self, way: Way, index: int) -> dict[str, int] | None:
        """What a request takes of a GPU; None where that one cannot serve it at all."""
        key = (id(way), index)
        if key not in self._needs:
            card = self._cards[index]
            amounts = {name: consumption(card, name, way.wanted.get(name)) for name in card.published}
            known = {name: value for name, value in amounts.items() if value is not None}
            wanted = _unwanted(way, card, self._classes) is None and len(known) == len(amounts)
            self._needs[key] = known if wanted else None
        return self._needs[key]

    def _agree(
        self, number: int, name: str, cards: Sequence[Card], chosen: Mapping[tuple[int, str], list[Card]]
    ) -> bool:
        """Whether the claim's constraints hold, with these GPUs for request `name`."""
        for constraint in self._wishes[number].constraints:
            if constraint.requests and name not in constraint.requests:
                continue
            values = [_value(card, constraint.attribute) for card in cards]
            for (other, request), others in chosen.items():
                if other == number and (not constraint.requests or request in constraint.requests):
                    values += [_value(card, constraint.attribute) for card in others]
            if None in values:
                return False
            distinct = len({str(value) for value in values})
            if distinct != (len(values) if constraint.distinct else 1):
                return False
        return True


def _value(card: Card, attribute: str) -> object:
    attributes = obj(card.raw.get("attributes"))
    short = attribute.removeprefix(f"{names.DRIVER}/")
    return next((attributes[name] for name in (attribute, short) if name in attributes), None)
