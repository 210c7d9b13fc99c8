# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities as exact numbers.

Grammar and rounding follow k8s.io/apimachinery `resource.Quantity`: a decimal number, then a binary
suffix (Ki … Ei), a decimal suffix (n u m, none, k … E) or an exponent; whole values round up.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from aliquot_api.errors import InvalidInput

MIB: Final = 1024**2
MAX: Final = 2**63 - 1
"""Largest value of a quantity that the API server computes with (int64)."""

_SUFFIXES: Final[dict[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_PATTERN: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?", re.ASCII
)
_MAX_LENGTH: Final = 64


def parse(text: str, *, field: str) -> int:
    """The value of quantity `text`, rounded up to a whole number.

    Raises InvalidInput, naming `field`, for text that is no quantity or whose magnitude exceeds MAX.
    """
    whole = _rounded_up(text) if len(text) <= _MAX_LENGTH else None
    if whole is None:
        raise InvalidInput(field=field, value=text, fix="want a Kubernetes quantity such as 8000Mi or 16Gi")
    if abs(whole) > MAX:
        raise InvalidInput(field=field, value=text, fix=f"want a magnitude of at most {MAX}")
    return whole


@lru_cache(maxsize=1024)
def _rounded_up(text: str) -> int | None:
    """The value; None for what is no quantity. The same few sizes come again and again."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""]
    value = Fraction(number) * scale
    return -(-value.numerator // value.denominator)


def format_mebibytes(value_bytes: int) -> str:
    """`value_bytes`, a multiple of 1Mi, as a quantity: 8388608000 -> "8000Mi".

    Always Mi, so that equal sizes have equal text (template names are hashes of it).
    """
    whole, rest = divmod(value_bytes, MIB)
    if rest or value_bytes < 0:
        raise ValueError(f"{value_bytes} bytes is not a multiple of 1Mi")
    return f"{whole}Mi"


def round_down(value_bytes: int, step_bytes: int = MIB) -> int:
    """The largest multiple of `step_bytes` that is not above `value_bytes`."""
    return value_bytes - value_bytes % step_bytes
