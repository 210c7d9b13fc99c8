# SPDX-License-Identifier: Apache-2.0
"""Structures of cuda.h as bytes for probe calls."""

import struct
from typing import Any

DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, INVISIBLE, DOMAIN = 1, 2, 3, 4, 5, 6
PINNED, MANAGED = 1, 2
DESCRIPTOR = 1
"""CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR."""
TILE_POOL = 1
NO_ACCESS, READ, READ_WRITE = 0, 1, 3

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8
"""CU_MEMPOOL_ATTR_*"""


def raw(data: bytes) -> Any:
    return {"bytes": data.hex()}


def location(kind: int = DEVICE, number: int = 0) -> bytes:
    return struct.pack("<ii", kind, number)


def pool_props(
    *,
    type_: int = PINNED,
    handles: int = 0,
    where: bytes = location(),
    security: int = 0,
    maximum: int = 0,
    usage: int = 0,
    reserved: bytes = b"",
) -> Any:
    head = struct.pack("<ii", type_, handles) + where + struct.pack("<QQH", security, maximum, usage)
    return raw(head + b"\0" + reserved.ljust(53, b"\0"))


def memory_prop(
    *, type_: int = PINNED, handles: int = 0, where: bytes = location(), windows: int = 0, usage: int = 0
) -> Any:
    head = struct.pack("<ii", type_, handles) + where + struct.pack("<Q", windows)
    return raw(head + struct.pack("<BBH4x", 0, 0, usage))


def access(flags: int = READ_WRITE, where: bytes = location()) -> Any:
    return raw(where + struct.pack("<i", flags))


def multicast_prop(devices: int, size: int, handles: int = 0) -> Any:
    return raw(struct.pack("<I4xQQQ", devices, size, handles, 0))


def wide(value: int = 0) -> Any:
    return {"out": value}
