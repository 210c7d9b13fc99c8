# SPDX-License-Identifier: Apache-2.0
"""JSON as it comes from outside: types for it, and readers that accept any shape."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

JsonObject: TypeAlias = Mapping[str, object]


def obj(value: object) -> JsonObject:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """`value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def dig(value: object, *path: str) -> object:
    """What stands at `path` below `value`, None where a step is missing."""
    for key in path:
        value = obj(value).get(key)
    return value


def only(value: JsonObject, **fields: Collection[str]) -> JsonObject:
    """`value` with these members of these of its members alone: only(pod, metadata=("name",))."""
    return {
        member: {name: inner[name] for name in wanted if name in inner}
        for member, wanted in fields.items()
        if (inner := obj(value.get(member)))
    }
