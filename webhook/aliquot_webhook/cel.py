# SPDX-License-Identifier: Apache-2.0
"""CEL of device selectors: built from live values, quoted, and within what the API server lets an
expression cost.

The server refuses `contains` on an optional's value ("exceeds cost limit": it cannot bound the length), but
takes `==` and `in` there; and `contains` where the attribute is first shown to exist.
"""

from collections.abc import Sequence
from typing import Final

from aliquot_api import names

_ATTRIBUTES: Final = f'device.attributes["{names.DRIVER}"]'


def string(value: str) -> str:
    """A string literal: everything but plain printable characters is escaped."""
    return '"' + "".join(map(_character, value)) + '"'


def _character(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    return f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"


def equals(attribute: str, value: str) -> str:
    """A string attribute has this value."""
    return f'{_ATTRIBUTES}.?{attribute}.orValue("") == {string(value)}'


def is_one_of(attribute: str, values: Sequence[str]) -> str:
    """A string attribute has one of these values."""
    if len(values) == 1:
        return equals(attribute, values[0])
    return f'{_ATTRIBUTES}.?{attribute}.orValue("") in [{", ".join(map(string, values))}]'


def is_none_of(attribute: str, values: Sequence[str]) -> str:
    """A string attribute has none of these values."""
    return f"!({is_one_of(attribute, values)})"


def number_is_one_of(attribute: str, values: Sequence[int]) -> str:
    """An integer attribute has one of these values."""
    return f"{_ATTRIBUTES}.?{attribute}.orValue(-1) in [{', '.join(map(str, values))}]"


def contains_all(attribute: str, words: Sequence[str]) -> str:
    """A string attribute has each of these lower-case words in it, whatever its case."""
    each = (f"{_ATTRIBUTES}.{attribute}.lowerAscii().contains({string(word)})" for word in words)
    return f"({string(attribute)} in {_ATTRIBUTES} && {' && '.join(each)})"


def capacity_is(capacity: str, value: str) -> str:
    """The card's total of a capacity is this."""
    return f'device.capacity["{names.DRIVER}"].{capacity}.compareTo(quantity({string(value)})) == 0'


def both(*clauses: str) -> str:
    """All clauses that are not empty."""
    return " && ".join(clause for clause in clauses if clause)


def either(clauses: Sequence[str]) -> str:
    """At least one clause."""
    return clauses[0] if len(clauses) == 1 else f"({' || '.join(clauses)})"
