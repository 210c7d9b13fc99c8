# SPDX-License-Identifier: Apache-2.0
"""Annotation values that speak about a pod's containers: `8Gi`, or `train=8Gi,serve=2Gi`; `true`, or `a,b`.

The webhook reads them at admission and the agent on running pods, so there is one reader.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from aliquot_api import quantity
from aliquot_api.errors import InvalidInput

_Value = TypeVar("_Value")


def memory_limits(text: str, *, field: str, containers: Sequence[str]) -> dict[str, int]:
    """Bytes per GPU by container, rounded up to whole Mi, from an annotation `text` at `field`.

    `containers` are the pod's GPU containers. Raises InvalidInput for a container that is not among them
    or named twice, for no quantity, and for less than 1Mi (a bare 8000 is bytes, and never meant).
    """
    return _by_container(text, field=field, containers=containers, read=_memory)


def cores_limits(text: str, *, field: str, containers: Sequence[str]) -> dict[str, int]:
    """Percent of a GPU's compute by container; as `memory_limits`, from 0 (none reserved) to 100."""
    return _by_container(text, field=field, containers=containers, read=_cores)


def chosen_containers(text: str, *, field: str, containers: Sequence[str]) -> tuple[str, ...]:
    """The containers that `true` (all of them), `false` or empty (none) or a comma list chooses."""
    words = [word.strip() for word in text.split(",")]
    if text.strip().lower() == "true":
        return tuple(containers)
    if text.strip().lower() in ("", "false"):
        return ()
    for word in words:
        if word not in containers:
            raise InvalidInput(field=field, value=word, fix=_containers_fix(containers, or_else="true, or "))
    return tuple(dict.fromkeys(words))


def _by_container(
    text: str, *, field: str, containers: Sequence[str], read: Callable[[str, str], _Value]
) -> dict[str, _Value]:
    if "=" not in text:
        value = read(text.strip(), field)
        return dict.fromkeys(containers, value)
    values: dict[str, _Value] = {}
    for part in text.split(","):
        name, separator, value_text = (piece.strip() for piece in part.partition("="))
        if not separator:
            raise InvalidInput(field=field, value=part, fix="want container=value, separated by commas")
        if name not in containers:
            raise InvalidInput(field=field, value=name, fix=_containers_fix(containers))
        if name in values:
            raise InvalidInput(field=field, value=text, fix=f"container {name} is named twice; keep one")
        values[name] = read(value_text, field)
    return values


def _containers_fix(containers: Sequence[str], *, or_else: str = "") -> str:
    if not containers:
        return "no container of this pod asks for a GPU"
    return f"want {or_else}one of the pod's GPU containers: {', '.join(containers)}"


def _memory(text: str, field: str) -> int:
    value_bytes = quantity.parse(text, field=field)
    if value_bytes < quantity.MIB:
        meant = f"; did you mean {value_bytes}Mi?" if value_bytes > 0 else ""
        raise InvalidInput(field=field, value=text, fix=f"want at least 1Mi{meant}")
    return -(-value_bytes // quantity.MIB) * quantity.MIB


def _cores(text: str, field: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= 100):
        raise InvalidInput(field=field, value=text, fix="want a whole percentage from 0 to 100")
    return int(text)
