# SPDX-License-Identifier: Apache-2.0
"""JSON Patch (RFC 6902): the few operations that a rewrite needs."""

import functools
from typing import Literal, NotRequired, TypedDict


class Operation(TypedDict):
    """One step; `value` is absent for remove."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: NotRequired[object]


@functools.lru_cache(maxsize=4096)  # few resources at few places: the same pointers all day
def pointer(*steps: str | int) -> str:
    """A JSON pointer (RFC 6901): `nvidia.com/vgpu` becomes `nvidia.com~1vgpu`."""
    return "/" + "/".join(
        [step.replace("~", "~0").replace("/", "~1") if isinstance(step, str) else str(step) for step in steps]
    )


def add(value: object, *steps: str | int) -> Operation:
    """Set a member, or insert before an element; step "-" appends."""
    return {"op": "add", "path": pointer(*steps), "value": value}


def replace(value: object, *steps: str | int) -> Operation:
    """Change what exists."""
    return {"op": "replace", "path": pointer(*steps), "value": value}


@functools.lru_cache(maxsize=4096)
def remove(*steps: str | int) -> Operation:
    """Take out what exists. Many share this one object."""
    return {"op": "remove", "path": pointer(*steps)}
