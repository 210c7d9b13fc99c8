# SPDX-License-Identifier: Apache-2.0
"""What one container asks for: handled resources, read from the pod and understood."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_webhook.policy import ResourceNames
from aliquot_webhook.wire import JsonObject, obj

SECTIONS: Final[tuple[Literal["limits", "requests"], ...]] = ("limits", "requests")
"""Where a container states resources; a limit goes before a request."""
_MAX_MEBIBYTES: Final = 2**31 - 1
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Stated:
    """A value, and the field path that an error about it names."""

    value: str
    field: str


@dataclass(frozen=True, slots=True)
class Found:
    """The handled resources of one container, as they stand."""

    stated: Mapping[str, Stated] = field(default_factory=dict)
    """The value that counts, by resource name."""
    places: tuple[tuple[str, str], ...] = ()
    """Every (section, resource name) that has to go."""
    conflicts: tuple[str, ...] = ()
    """Resource names whose limit and request differ."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs for one container."""

    container: str
    count: int
    memory_bytes: int | None
    """Per GPU; None is all of it."""
    cores_percent: int

    @property
    def is_whole(self) -> bool:
        """Whole cards: nobody shares them, so no limit needs to be held."""
        return self.memory_bytes is None and self.cores_percent == 100

    @property
    def is_exclusive_share(self) -> bool:
        """A memory limit on a card that nobody else may use."""
        return self.memory_bytes is not None and self.cores_percent == 100


def find(resources: JsonObject, *, path: str, handled: tuple[str, ...]) -> Found:
    """The handled resources below `resources`, which stands at `path`."""
    stated: dict[str, Stated] = {}
    places: list[tuple[str, str]] = []
    conflicts: list[str] = []
    for section in SECTIONS:
        given = obj(resources.get(section))
        for name in handled:
            if name not in given:
                continue
            places.append((section, name))
            value = Stated(value=_as_text(given[name]), field=f"{path}.{section}[{name}]")
            if stated.setdefault(name, value).value != value.value:
                conflicts.append(name)
    return Found(stated=stated, places=tuple(places), conflicts=tuple(conflicts))


def _as_text(value: object) -> str:
    # The API server serialises quantities as strings; numbers come from hand-made reviews.
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def understand(stated: Mapping[str, Stated], *, container: str, names: ResourceNames) -> GpuRequest | None:
    """The request that these values mean; None if they ask for no GPU.

    Raises InvalidInput for a value that means nothing, or something that is not supported.
    """
    percent = stated.get(names.memory_percent)
    if percent is not None:
        raise InvalidInput(
            field=percent.field,
            value=percent.value,
            fix=f"a percentage of memory is not supported yet; ask for MiB with {names.memory}",
        )
    count, memory, cores = (stated.get(name) for name in (names.count, names.memory, names.cores))
    if count is None and memory is None and cores is None:
        return None
    memory_bytes = None if memory is None else _mebibytes(memory) * quantity.MIB
    # HAMi: a bare count means cards for oneself, a memory size means sharing.
    default_cores = 100 if memory is None else 0
    return GpuRequest(
        container=container,
        count=1 if count is None else _count(count),
        memory_bytes=memory_bytes,
        cores_percent=default_cores if cores is None else _percent(cores),
    )


def _count(stated: Stated) -> int:
    number = _whole(stated, fix="want a whole number of GPUs such as 1")
    if number < 1:
        raise InvalidInput(
            field=stated.field,
            value=stated.value,
            fix="want at least 1; remove the line to ask for no GPU",
        )
    return number


def _mebibytes(stated: Stated) -> int:
    number = _whole(stated, fix="want a whole number of MiB such as 8000")
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


def _percent(stated: Stated) -> int:
    number = _whole(stated, fix="want a whole percentage such as 30")
    if not 0 <= number <= 100:
        raise InvalidInput(field=stated.field, value=stated.value, fix="want a percentage from 0 to 100")
    return number


def _whole(stated: Stated, *, fix: str) -> int:
    """`stated` as an exact whole number: 8k is 8000, 0.5 is refused."""
    if stated.value.isascii() and stated.value.isdecimal() and len(stated.value) < len(str(quantity.MAX)):
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
