# SPDX-License-Identifier: Apache-2.0
"""`value`: a class of values for the hot path, immutable by type check and not by machinery.

A frozen dataclass sets each field through `object.__setattr__`: four times the cost of building the same
object without, and `rewrite` builds a dozen for each container.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """As `dataclass(frozen=True, slots=True)`, for the type checker; comparable and hashable."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
