# SPDX-License-Identifier: Apache-2.0
"""How a library is linked, as far as the shim's look-up depends on it."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_SYMTAB, _SYMBOLIC, _FLAGS, _VERDEF = 6, 16, 30, 0x6FFFFFFC
_FLAG_SYMBOLIC: Final = 2
_WRITE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What decides whether a rewritten symbol table is seen by all."""

    symbolic: bool
    """Calls within the library bind to itself (-Bsymbolic)."""
    versioned: bool
    """Its own symbols have versions."""
    symtab_writable: bool
    """The segment of DT_SYMTAB is writable by itself."""


def layout(path: Path) -> Layout:
    """Layout of a 64-bit little-endian library; ValueError for anything else."""
    data = path.read_bytes()
    header = _HEADER.unpack_from(data)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path}: no 64-bit little-endian ELF file")
    segments = [_SEGMENT.unpack_from(data, header[5] + index * header[9]) for index in range(header[10])]
    (dynamic,) = (each for each in segments if each[0] == _DYNAMIC_SEGMENT)
    tags = dict(_tags(data, offset=dynamic[2], size=dynamic[5]))
    holder = next(s for s in segments if s[0] == _LOAD and s[3] <= tags[_SYMTAB] < s[3] + s[6])
    return Layout(
        symbolic=_SYMBOLIC in tags or bool(tags.get(_FLAGS, 0) & _FLAG_SYMBOLIC),
        versioned=_VERDEF in tags,
        symtab_writable=bool(holder[1] & _WRITE),
    )


def _tags(data: bytes, *, offset: int, size: int) -> Iterator[tuple[int, int]]:
    for tag, value in _DYNAMIC.iter_unpack(data[offset : offset + size]):
        if tag == 0:
            return
        yield tag, value
