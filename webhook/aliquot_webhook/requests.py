# SPDX-License-Identifier: Apache-2.0
"""What one container asks for: handled resources, read from the pod and understood."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final, Literal

from aliquot_api import quantity
from aliquot_api.config import Priority
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject
from aliquot_webhook.policy import Policy
from aliquot_webhook.values import value

SECTIONS: Final[tuple[Literal["limits", "requests"], ...]] = ("limits", "requests")
"""Where a container states resources; a limit goes before a request."""
_MAX_MEBIBYTES: Final = 2**31 - 1
_SHOWN: Final = 64
_SURELY_SMALL: Final = len(str(quantity.MAX))
"""Fewer digits than this are a number that fits."""


@value
class Stated:
    """A value, and the field path that an error about it names."""

    value: str
    field: str


@value
class Found:
    """The handled resources of one container, as they stand."""

    stated: Mapping[str, Stated] = field(default_factory=dict)
    """The value that counts, by resource name."""
    places: tuple[tuple[str, str], ...] = ()
    """Every (section, resource name) that has to go."""
    conflicts: tuple[str, ...] = ()
    """Resource names whose limit and request differ."""


NOTHING: Final = Found()


@value
class GpuRequest:
    """GPUs for one container."""

    container: str
    count: int
    memory_bytes: int | None
    """Per GPU; None is all of it, or a percentage."""
    cores_percent: int
    memory_percent: int | None = None
    """Of each GPU's nominal memory, 1 to 99; in place of `memory_bytes`."""
    alone: bool = False
    """Takes every share of its cards, whatever else it leaves unused."""
    priority: Priority | None = None
    """Who gets idle time first."""

    @property
    def takes_all_memory(self) -> bool:
        """Neither an amount nor a percentage."""
        return self.memory_bytes is None and self.memory_percent is None

    @property
    def is_whole(self) -> bool:
        """Whole cards: nobody shares them, so no limit needs to be held."""
        return self.cores_percent == 100 and self.takes_all_memory

    @property
    def is_exclusive_share(self) -> bool:
        """A memory limit on a card that nobody else may use."""
        return not self.takes_all_memory and (self.alone or self.cores_percent == 100)


@value
class Meant:
    """What a container's values mean."""

    request: GpuRequest
    is_sequential: bool
    """The container is over before the others start."""
    count: Stated | None = None
    memory: Stated | None = None
    """What the author wrote about these, if anything."""
    warnings: tuple[str, ...] = ()


def find(resources: JsonObject, *, path: str, handled: frozenset[str]) -> Found:
    """The handled resources below `resources`, which stands at `path`."""
    stated: dict[str, Stated] = {}
    places: list[tuple[str, str]] = []
    conflicts: list[str] = []
    for section in SECTIONS:
        given = resources.get(section)
        if not isinstance(given, dict):
            continue
        for name in given:
            if name not in handled:
                continue
            places.append((section, name))
            value = _as_text(given[name])
            if name not in stated:
                stated[name] = Stated(value, f"{path}.{section}[{name}]")
            elif stated[name].value != value:
                conflicts.append(name)
    return Found(stated, tuple(places), tuple(conflicts)) if places else NOTHING


def _as_text(value: object) -> str:
    # The API server serialises quantities as strings; numbers come from hand-made reviews.
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def understand(
    stated: Mapping[str, Stated],
    *,
    container: str,
    policy: Policy,
    limit: tuple[Stated, int] | None = None,
    cores_limit: tuple[Stated, int] | None = None,
    alone: bool = False,
    exclusive: bool = False,
    is_sequential: bool = False,
) -> Meant | None:
    """What these values mean, None if they ask for no GPU; with what annotations say about this container:
    `limit` in bytes, `cores_limit` in percent, `alone` on its cards, `exclusive` use of them.

    Raises InvalidInput for a value that means nothing, or a contradiction.
    """
    resources = policy.resources
    count, memory = stated.get(resources.count), stated.get(resources.memory)
    percent, cores = stated.get(resources.memory_percent), stated.get(resources.cores)
    if count is None and memory is None and percent is None and cores is None:
        return None
    warnings: list[str] = []
    memory_percent = None if percent is None else _memory_percent(percent)
    says_all = percent is not None and memory_percent is None
    memory_bytes = _memory_bytes(memory, percent, policy, limit, warnings)
    if memory_bytes is not None:
        memory_percent = None
    elif percent is None and not exclusive:
        memory_bytes = policy.default_memory_mib * quantity.MIB or None
    cores_percent = _cores(cores, cores_limit, warnings)
    if cores_percent is None:
        # HAMi: a bare count, or all of the memory, means cards for oneself; a part of it means sharing.
        takes_all = memory_bytes is None and memory_percent is None
        cores_percent = 100 if exclusive or says_all or takes_all else policy.default_cores_percent
    elif exclusive and cores_percent != 100:
        blamed = cores or (cores_limit and cores_limit[0])
        raise InvalidInput(
            field=blamed.field if blamed else resources.cores,
            value=cores_percent,
            fix="sharing: exclusive takes all cores; leave this out",
        )
    request = GpuRequest(
        container=container,
        count=policy.default_count if count is None else _count(count),
        memory_bytes=memory_bytes,
        cores_percent=cores_percent,
        memory_percent=memory_percent,
        alone=alone or exclusive,
        priority=_priority(stated.get(resources.priority), warnings),
    )
    if request.is_whole and request.priority is not None:
        given = stated[resources.priority]
        warnings.append(f"{given.field}: {given.value} means nothing on a card for oneself and is dropped")
        request = replace(request, priority=None)
    return Meant(
        request=request,
        is_sequential=is_sequential,
        count=count,
        memory=memory or (limit[0] if limit else percent),
        warnings=tuple(warnings),
    )


def _memory_bytes(
    memory: Stated | None,
    percent: Stated | None,
    policy: Policy,
    limit: tuple[Stated, int] | None,
    warnings: list[str],
) -> int | None:
    memory_bytes = None if memory is None else _mebibytes(memory, policy.memory_factor) * quantity.MIB
    if memory is not None and percent is not None:
        warnings.append(f"{percent.field}: {percent.value} is ignored: {memory.field} counts")
    if limit is None:
        return memory_bytes
    annotation, limit_bytes = limit
    other = memory or percent
    if other is not None and limit_bytes != memory_bytes:
        raise InvalidInput(
            field=annotation.field,
            value=annotation.value,
            fix=f"{other.field} says {other.value}; keep one of the two, or make them equal",
        )
    return limit_bytes


def _cores(cores: Stated | None, limit: tuple[Stated, int] | None, warnings: list[str]) -> int | None:
    value = None if cores is None else _cores_percent(cores, warnings)
    if limit is None:
        return value
    annotation, limit_percent = limit
    if cores is not None and value != limit_percent:
        raise InvalidInput(
            field=annotation.field,
            value=annotation.value,
            fix=f"{cores.field} says {cores.value}; keep one of the two, or make them equal",
        )
    return limit_percent


def _count(stated: Stated) -> int:
    number = _whole(stated, fix="want a whole number of GPUs such as 1")
    if number < 1:
        raise InvalidInput(
            field=stated.field,
            value=stated.value,
            fix="want at least 1; remove the line to ask for no GPU",
        )
    return number


def _mebibytes(stated: Stated, factor: int) -> int:
    number = _whole(stated, fix="want a whole number of MiB such as 8000") * factor
    if number < 1:
        raise InvalidInput(
            field=stated.field,
            value=stated.value,
            fix="want at least 1 (MiB); remove the line to get all memory of the GPU",
        )
    if number > _MAX_MEBIBYTES:
        meant = f": did you mean {number // quantity.MIB}?" if number % quantity.MIB == 0 else ""
        raise InvalidInput(field=stated.field, value=stated.value, fix=f"the unit is MiB already{meant}")
    return number


def _memory_percent(stated: Stated) -> int | None:
    number = _whole(stated, fix="want a whole percentage such as 50")
    if not 1 <= number <= 100:
        raise InvalidInput(
            field=stated.field,
            value=stated.value,
            fix="want a percentage from 1 to 100; remove the line to get all memory of the GPU",
        )
    return None if number == 100 else number


def _cores_percent(stated: Stated, warnings: list[str]) -> int:
    number = _whole(stated, fix="want a whole percentage such as 30")
    if number < 0:
        raise InvalidInput(field=stated.field, value=stated.value, fix="want a percentage from 0 to 100")
    if number > 100:
        warnings.append(f"{stated.field}: {stated.value} is more than a GPU has; it counts as 100")
    return min(number, 100)


def _priority(stated: Stated | None, warnings: list[str]) -> Priority | None:
    """HAMi's 0 is high, 1 is low."""
    if stated is None:
        return None
    number = _whole(stated, fix="want 0 (high) or 1 (low)")
    if number < 0:
        raise InvalidInput(field=stated.field, value=stated.value, fix="want 0 (high) or 1 (low)")
    if number > 1:
        warnings.append(f"{stated.field}: {stated.value} counts as 1: 0 is high, 1 is low")
    return Priority.LOW if number else Priority.HIGH


def _whole(stated: Stated, *, fix: str) -> int:
    """`stated` as an exact whole number: 8k is 8000, 0.5 is refused."""
    if stated.value.isascii() and stated.value.isdecimal() and len(stated.value) < _SURELY_SMALL:
        return int(stated.value)  # by far the most frequent form, and a tenth of the time
    try:
        ceiling = quantity.parse(stated.value, field=stated.field)
        negated = stated.value[1:] if stated.value[0] == "-" else f"-{stated.value.removeprefix('+')}"
        floor = -quantity.parse(negated, field=stated.field)
    except InvalidInput as error:
        raise InvalidInput(field=stated.field, value=stated.value, fix=fix) from error
    if ceiling != floor:
        raise InvalidInput(field=stated.field, value=stated.value, fix=fix)
    return ceiling
