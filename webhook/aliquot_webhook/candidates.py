# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of the cluster may serve a pod: a choice by type, UUID, index and sharing mode, resolved
against live devices into selectors, in order of preference.

Types become lists of product names, so that no CEL has to search in text. Such a list holds what the cluster
has now; only while it has nothing at all do the words themselves go into the selector.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode
from aliquot_webhook import cel, wishes
from aliquot_webhook.inventory import Gpu, Inventory, of_places
from aliquot_webhook.wishes import Choice

ANY_TYPE: Final = "*"
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that are equally welcome."""

    selector: str
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Candidates:
    """The groups, most welcome first."""

    groups: tuple[Group, ...]
    everything: Inventory
    """The GPUs of all groups."""
    warnings: tuple[str, ...] = ()


def candidates(choice: Choice, inventory: Inventory) -> Candidates:
    """The GPUs that `choice` leaves. Raises InvalidInput, naming the words, where that is none."""
    known = inventory.memo.get(choice)
    if not isinstance(known, Candidates):
        known = _resolve(choice, inventory) if inventory.gpus else _unknown(choice)
        inventory.memo.put(choice, known)
    return known


def check_offered(wish: Mode, inventory: Inventory, *, field: str) -> None:
    """Raise InvalidInput where GPUs are known and none is shared as `wish` says."""
    offered = sorted({gpu.mode for gpu, _ in inventory.gpus})
    if offered and not any(gpu.serves(wish) for gpu, _ in inventory.gpus):
        fix = f"no GPU of this cluster is shared that way; name a mode that they offer: {', '.join(offered)}"
        raise InvalidInput(field=field, value=str(wish), fix=fix)


def _shared(wish: Mode) -> str:
    """The selector of GPUs that are shared so."""
    length = "" if wish.time_slice is None else cel.equals("timeSlice", wish.time_slice)
    return cel.both(cel.equals("sharing", wish.sharing), length)


def _resolve(choice: Choice, inventory: Inventory) -> Candidates:
    warnings: list[str] = []
    check_offered(choice.sharing, inventory, field=wishes.path(names.ANNOTATION_SHARING))
    everything = inventory.only(lambda gpu: gpu.serves(choice.sharing))
    by_uuid, everything = _uuids(choice, inventory, everything, warnings)
    everything, products = _types(choice, everything, warnings)
    selector = cel.both(
        _shared(choice.sharing),
        by_uuid,
        cel.number_is_one_of("minor", sorted(set(choice.indexes))) if choice.indexes else "",
        f"!({cel.number_is_one_of('minor', sorted(set(choice.not_indexes)))})" if choice.not_indexes else "",
    )
    restricted = bool(choice.types or choice.not_types)
    groups = []
    for step in _preferences(choice.preferred, products, warnings):
        fits = _in(step)
        # All products and no wish about them: a GPU of a new product, published later, is welcome too.
        clause = cel.is_one_of("productName", step) if restricted or choice.preferred else ""
        groups.append(Group(selector=cel.both(selector, clause), inventory=everything.only(fits)))
    return Candidates(groups=tuple(groups), everything=everything, warnings=tuple(warnings))


def _in(products: Sequence[str]) -> Callable[[Gpu], bool]:
    return lambda gpu: gpu.product in products


def _uuids(
    choice: Choice, inventory: Inventory, everything: Inventory, warnings: list[str]
) -> tuple[str, Inventory]:
    unknown = [uuid for uuid in (*choice.uuids, *choice.not_uuids) if uuid not in inventory.places]
    wanted = [inventory.places[uuid] for uuid in dict.fromkeys(choice.uuids) if uuid in inventory.places]
    if choice.uuids and not wanted:
        raise InvalidInput(
            field=wishes.path(wishes.USE_UUID),
            value=", ".join(choice.uuids)[:64],
            fix="no GPU of this cluster has such a UUID",
        )
    if unknown:
        warnings.append(f"no GPU of this cluster has the UUID {_list(unknown)}")
    shunned = [inventory.places[uuid] for uuid in dict.fromkeys(choice.not_uuids) if uuid in inventory.places]
    if wanted or shunned:
        shunned_uuids = {place.uuid for place in shunned}
        places = [
            place
            for place in (wanted or inventory.places.values())
            if place.uuid not in shunned_uuids and place.gpu.serves(choice.sharing)
        ]
        everything = of_places(places)
        if not places:
            raise InvalidInput(
                field=wishes.path(wishes.NOUSE_UUID if shunned else wishes.USE_UUID),
                value=", ".join(choice.not_uuids if shunned else choice.uuids)[:64],
                fix="no GPU of this cluster is left",
            )
    return cel.both(
        cel.is_one_of("uuid", [place.uuid for place in wanted]) if wanted else "",
        cel.is_none_of("uuid", [place.uuid for place in shunned]) if shunned else "",
    ), everything


def _types(choice: Choice, everything: Inventory, warnings: list[str]) -> tuple[Inventory, tuple[str, ...]]:
    """The GPUs whose product is wanted and not shunned, and those products."""
    products = tuple(dict.fromkeys(gpu.product for gpu, _ in everything.gpus))
    left = tuple(
        product
        for product in products
        if (not choice.types or any(_is_hami_type(product, word) for word in choice.types))
        and not any(_is_hami_type(product, word) for word in choice.not_types)
    )
    if not left:
        key = wishes.USE_TYPE if choice.types else wishes.NOUSE_TYPE
        raise InvalidInput(
            field=wishes.path(key),
            value=", ".join(choice.types or choice.not_types)[:64],
            fix=f"no GPU of this cluster is left; it has {_list(products)}",
        )
    unmatched = [
        word for word in choice.types if not any(_is_hami_type(product, word) for product in products)
    ]
    if unmatched:
        warnings.append(f"{wishes.USE_TYPE}: no GPU of this cluster matches {_list(unmatched)}")
    return everything.only(_in(left)), left


def _is_hami_type(product: str, word: str) -> bool:
    """HAMi's comparison: part of the model's name, to which HAMi adds a prefix of its own."""
    return word in f"nvidia-{product.lower()}"


def _preferences(
    preferred: Sequence[str], products: tuple[str, ...], warnings: list[str]
) -> list[tuple[str, ...]]:
    """Products in groups, most welcome first, each in one group only: else the scheduler would try the same
    GPU again for each group."""
    if not preferred:
        return [products]
    key, left, steps = names.ANNOTATION_GPU_TYPES, list(products), []
    for word in preferred:
        step = tuple(product for product in left if word == ANY_TYPE or _is_type(product, word))
        if step:
            steps.append(step)
            left = [product for product in left if product not in step]
        elif word != ANY_TYPE and not any(_is_type(product, word) for product in products):
            warnings.append(f"{key}: no GPU of this cluster matches {word[:64]}")
    if not steps:
        raise InvalidInput(
            field=wishes.path(key),
            value=", ".join(preferred)[:64],
            fix=f"no GPU of this cluster matches; it has {_list(products)}",
        )
    return steps


def _is_type(product: str, word: str) -> bool:
    """Each part of `a100-80gb` stands somewhere in "NVIDIA A100-SXM4-80GB"."""
    return all(part in product.lower() for part in _parts(word))


def _parts(word: str) -> list[str]:
    return [part for part in word.replace("_", "-").replace(" ", "-").split("-") if part] or [word]


def _unknown(choice: Choice) -> Candidates:
    """No GPU is known: the author's words are taken as they are."""
    uuids = cel.both(
        cel.is_one_of("uuid", _plain(choice.uuids)) if choice.uuids else "",
        cel.is_none_of("uuid", _plain(choice.not_uuids)) if choice.not_uuids else "",
    )
    types = cel.both(
        cel.either([cel.contains_all("productName", [word]) for word in choice.types])
        if choice.types
        else "",
        f"!({cel.either([cel.contains_all('productName', [word]) for word in choice.not_types])})"
        if choice.not_types
        else "",
    )
    base = cel.both(
        _shared(choice.sharing),
        uuids,
        cel.number_is_one_of("minor", sorted(set(choice.indexes))) if choice.indexes else "",
        f"!({cel.number_is_one_of('minor', sorted(set(choice.not_indexes)))})" if choice.not_indexes else "",
        types,
    )
    steps = [
        "" if word == ANY_TYPE else cel.contains_all("productName", _parts(word)) for word in choice.preferred
    ]
    groups = tuple(Group(selector=cel.both(base, step), inventory=Inventory()) for step in steps or [""])
    return Candidates(groups=groups, everything=Inventory())


def _plain(uuids: Sequence[str]) -> list[str]:
    """NVML writes `GPU-` in capitals and hexadecimal digits in small letters."""
    return [uuid.replace("gpu-", "GPU-", 1) for uuid in uuids]


def _list(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(word[:64] or "a GPU without a name" for word in words[:_SHOWN]) + more
