# SPDX-License-Identifier: Apache-2.0
"""`quota` and `ledger` as bytes: the mirror of shim/include/aliquot_region.h, held to it by tests/contract.

Pure: bytes in, values out and back. Who opens the files is `sharedir`.
"""

import ctypes
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

QUOTA_MAGIC: Final = b"ALIQUOTQ"
LEDGER_MAGIC: Final = b"ALIQUOTL"
LAYOUT: Final = 1
QUOTA_SIZE: Final = 4096
LEDGER_HEADER_SIZE: Final = 4096
LOG_PATH_SIZE: Final = 256
LEDGER_FROZEN_SIZE: Final = 64
"""Of the header: what never changes."""
SLOTS: Final = 1024
SLOT_SIZE: Final = 128
LEDGER_SIZE: Final = LEDGER_HEADER_SIZE + SLOTS * SLOT_SIZE
FLAG_UNLIMITED: Final = 1
OVERHEAD_UNKNOWN: Final = 2**64 - 1
SLOT_LOCK_BASE: Final = 1 << 40
COST_FACTOR_ONE: Final = 1_000_000

SANE_BYTES: Final = 1 << 56
SANE_CONTEXTS: Final = 1 << 20
"""Larger words are no counts: the ledger was written over. As in shim/src/sums.h."""
_LARGEST_JSON: Final = 2**63 - 1

_u64 = ctypes.c_uint64


class QuotaLayout(ctypes.Structure):
    """`struct aq_quota`."""

    _fields_ = (
        ("magic", ctypes.c_uint8 * 8),
        ("layout", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("gpu_uuid", ctypes.c_uint8 * 16),
        ("check", _u64),
        ("reserved0", ctypes.c_uint8 * 24),
        ("memory_limit_bytes", _u64),
        ("cores_millipercent", _u64),
        ("lent_millipercent", _u64),
        ("lent_until_ns", _u64),
        ("cost_factor_ppm", _u64),
        ("context_estimate_bytes", _u64),
        ("floor_bytes", _u64),
        ("flags", _u64),
        ("epoch", _u64),
        ("heartbeat_ns", _u64),
        ("priority", _u64),
        ("reserved1", ctypes.c_uint8 * 104),
        ("log_path", ctypes.c_uint8 * LOG_PATH_SIZE),
        ("reserved2", ctypes.c_uint8 * (QUOTA_SIZE - 256 - LOG_PATH_SIZE)),
    )


class SlotLayout(ctypes.Structure):
    """`struct aq_slot`."""

    _fields_ = (
        ("used_bytes", _u64),
        ("generation", _u64),
        ("overhead_bytes", _u64),
        ("contexts", _u64),
        ("changes", _u64),
        ("peak_bytes", _u64),
        ("pool_bytes", _u64),
        ("graph_bytes", _u64),
        ("pid", _u64),
        ("pidns_inode", _u64),
        ("start_ticks", _u64),
        ("host_pid", _u64),
        ("measured_contexts", _u64),
        ("code_bytes", _u64),
        ("measured_code_bytes", _u64),
        ("managed_bytes", _u64),
    )


class LedgerLayout(ctypes.Structure):
    """`struct aq_ledger`."""

    _fields_ = (
        ("magic", ctypes.c_uint8 * 8),
        ("layout", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("reserved0", ctypes.c_uint32),
        ("generation", _u64),
        ("reserved1", ctypes.c_uint8 * 32),
        ("tat_ns", _u64),
        ("granted_ns", _u64),
        ("slots_used", _u64),
        ("denied", _u64),
        ("throttled_ns", _u64),
        ("peak_bytes", _u64),
        ("overdraft", _u64),
        ("last_launch_ns", _u64),
        ("waiting_until_ns", _u64),
        ("paced_millipercent", _u64),
        ("reserved2", ctypes.c_uint8 * (LEDGER_HEADER_SIZE - 144)),
        ("slot", SlotLayout * SLOTS),
    )


class DamagedRegion(ValueError):
    """A quota or ledger whose header is not ours: overwritten, truncated, or of another layout."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The words of a quota that the agent decides; limits in bytes and 1/1000 percent."""

    gpu_uuid: str
    memory_limit_bytes: int
    cores_millipercent: int = 0
    context_estimate_bytes: int = 0
    floor_bytes: int = 0
    flags: int = 0
    cost_factor_ppm: int = COST_FACTOR_ONE
    epoch: int = 0
    heartbeat_ns: int = 0
    log_path: str = ""
    """Where the shim says why it refuses the GPU altogether: a path inside the container; empty = nowhere."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One process's use. Written by the tenant, so nothing in it is to be believed without a check.

    In the order of `struct aq_slot`.
    """

    index: int
    used_bytes: int
    generation: int
    overhead_bytes: int
    contexts: int
    changes: int
    pid: int
    pidns_inode: int
    start_ticks: int
    host_pid: int
    measured_contexts: int
    code_bytes: int = 0
    measured_code_bytes: int = 0
    managed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger's share block and its slots in use."""

    generation: int
    slots_used: int
    denied: int
    throttled_ns: int
    peak_bytes: int
    slots: tuple[Slot, ...]


class Pacing(NamedTuple):
    """The words of a quota that hold a share's cores; shares in 1/1000 percent, times of CLOCK_MONOTONIC."""

    cores_millipercent: int
    lent_millipercent: int = 0
    lent_until_ns: int = 0
    cost_factor_ppm: int = COST_FACTOR_ONE
    priority: int = 0


class Pace(NamedTuple):
    """A ledger's words about launches, in the order of the file."""

    tat_ns: int = 0
    granted_ns: int = 0
    throttled_ns: int = 0
    last_launch_ns: int = 0
    waiting_until_ns: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a share has and takes, in bytes; `processes` is a count."""

    limit_bytes: int
    used_bytes: int
    peak_bytes: int
    denied: int
    processes: int
    throttled_ns: int = 0


def uuid_bytes(gpu_uuid: str) -> bytes:
    """`GPU-xxxxxxxx-…` (any case) as the 16 bytes cuDeviceGetUuid gives; ValueError for anything else."""
    prefix, _, rest = gpu_uuid.partition("-")
    if prefix.upper() != "GPU":
        raise ValueError(f"GPU UUID {gpu_uuid!r}: want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
    try:
        return uuid.UUID(rest).bytes
    except ValueError as error:
        raise ValueError(f"GPU UUID {gpu_uuid!r}: want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") from error


def fnv1a64(data: bytes) -> int:
    """The FNV-1a hash that guards the quota's header."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def encode_quota(quota: Quota) -> bytes:
    """A complete quota page."""
    page = QuotaLayout.from_buffer_copy(_quota_of_gpu(quota.gpu_uuid))
    page.memory_limit_bytes = quota.memory_limit_bytes
    page.cores_millipercent = quota.cores_millipercent
    page.context_estimate_bytes = quota.context_estimate_bytes
    page.cost_factor_ppm = quota.cost_factor_ppm
    page.floor_bytes = quota.floor_bytes
    page.flags = quota.flags
    page.epoch = quota.epoch
    page.heartbeat_ns = quota.heartbeat_ns
    if quota.log_path:  # as the agent never does, and byte by byte
        page.log_path[:] = _log_path_bytes(quota.log_path)
    return bytes(page)


@lru_cache(maxsize=64)
def _quota_of_gpu(gpu_uuid: str) -> bytes:
    """A page with nothing but its header: the same for all shares of a GPU."""
    page = QuotaLayout(layout=LAYOUT, size=QUOTA_SIZE)
    page.magic[:] = QUOTA_MAGIC
    page.gpu_uuid[:] = uuid_bytes(gpu_uuid)
    page.check = fnv1a64(bytes(page)[:32])
    return bytes(page)


def decode_quota(data: bytes) -> Quota:
    """The values of a quota page; raises DamagedRegion."""
    if len(data) != QUOTA_SIZE:
        raise DamagedRegion(f"quota has {len(data)} bytes, want {QUOTA_SIZE}")
    page = QuotaLayout.from_buffer_copy(data)
    if bytes(page.magic) != QUOTA_MAGIC or page.check != fnv1a64(data[:32]):
        raise DamagedRegion("quota header is damaged: magic or check value differ")
    if (page.layout, page.size) != (LAYOUT, QUOTA_SIZE):
        raise DamagedRegion(
            f"quota has layout {page.layout} and size {page.size}, want {LAYOUT}, {QUOTA_SIZE}"
        )
    return Quota(
        gpu_uuid=f"GPU-{uuid.UUID(bytes=bytes(page.gpu_uuid))}",
        memory_limit_bytes=page.memory_limit_bytes,
        cores_millipercent=page.cores_millipercent,
        context_estimate_bytes=page.context_estimate_bytes,
        floor_bytes=page.floor_bytes,
        flags=page.flags,
        cost_factor_ppm=page.cost_factor_ppm,
        epoch=page.epoch,
        heartbeat_ns=page.heartbeat_ns,
        log_path=bytes(page.log_path).partition(b"\0")[0].decode(errors="replace"),
    )


def _log_path_bytes(path: str) -> bytes:
    data = path.encode()
    if len(data) >= LOG_PATH_SIZE or (path and not path.startswith("/")) or "\0" in path:
        raise ValueError(f"log path {path!r}: want an absolute path of less than {LOG_PATH_SIZE} bytes")
    return data.ljust(LOG_PATH_SIZE, b"\0")


def encode_ledger_header(generation: int) -> bytes:
    """The header of a fresh ledger; the rest of its LEDGER_SIZE bytes is zero."""
    header = _Header(generation=generation, slots_used=0, denied=0, throttled_ns=0, peak_bytes=0)
    return _HEADER.pack(LEDGER_MAGIC, LAYOUT, LEDGER_SIZE, SLOTS, *header).ljust(LEDGER_HEADER_SIZE, b"\0")


def slots_length(header: bytes) -> int:
    """Bytes of slots after `header`: at most what a ledger can hold, whatever a tenant wrote there."""
    return min(_decode_header(header).slots_used, SLOTS) * SLOT_SIZE


class _Header(NamedTuple):
    """What of a ledger's header counts here."""

    generation: int
    slots_used: int
    denied: int
    throttled_ns: int
    peak_bytes: int


_HEADER: Final = struct.Struct("=8sIII4xQ32x16xQQQQ")
_SLOT: Final = struct.Struct("=QQQQQ24xQQQQQQQQ")
_PACE: Final = struct.Struct("=QQ16xQ16xQQ")
PACE_OFFSET: Final = LedgerLayout.tat_ns.offset
PACE_SIZE: Final = _PACE.size
_PID_WORD: Final = 5
"""Read 128 times a second and more: ctypes would take twice the time. The contract test covers both."""


def _decode_header(header: bytes) -> _Header:
    if len(header) < LEDGER_HEADER_SIZE:
        raise DamagedRegion(f"ledger ends after {len(header)} bytes")
    magic, layout, size, slots, *words = _HEADER.unpack_from(header)
    if (magic, layout, size, slots) != (LEDGER_MAGIC, LAYOUT, LEDGER_SIZE, SLOTS):
        raise DamagedRegion("ledger header is damaged")
    return _Header(*words)


def decode_ledger(header: bytes, slots: bytes) -> Ledger:
    """The values of a ledger read as its header and `slots_length(header)` bytes; raises DamagedRegion."""
    block = _decode_header(header)
    if len(slots) < min(block.slots_used, SLOTS) * SLOT_SIZE:
        raise DamagedRegion("ledger was truncated")
    return Ledger(
        generation=block.generation,
        slots_used=block.slots_used,
        denied=block.denied,
        throttled_ns=block.throttled_ns,
        peak_bytes=block.peak_bytes,
        slots=tuple(_slots(slots)),
    )


def decode_slot(data: bytes, *, index: int) -> Slot | None:
    """The slot whose SLOT_SIZE bytes are `data`; None for a free one."""
    words = _SLOT.unpack(data)
    return Slot(index, *words) if words[_PID_WORD] else None


def _slots(data: bytes) -> Iterator[Slot]:
    for index in range(len(data) // SLOT_SIZE):
        slot = decode_slot(data[index * SLOT_SIZE : (index + 1) * SLOT_SIZE], index=index)
        if slot is not None:
            yield slot


def counted_bytes(slot: Slot, context_estimate_bytes: int) -> int | None:
    """What the shim counts for this process: exact use, measured overhead, estimates for what is newer.

    None for words that are no counts.
    """
    overhead, contexts, code = slot.overhead_bytes, slot.contexts, slot.code_bytes
    if overhead == OVERHEAD_UNKNOWN:
        overhead = 0
    else:
        contexts = max(0, contexts - slot.measured_contexts)
        code = max(0, code - slot.measured_code_bytes)
    counted = slot.used_bytes + overhead + code + contexts * context_estimate_bytes
    return None if contexts > SANE_CONTEXTS or counted > SANE_BYTES else counted


def decode_pace(data: bytes) -> Pace:
    """The words about launches in the PACE_SIZE bytes at PACE_OFFSET of a ledger."""
    return Pace._make(_PACE.unpack(data))


def free_slot(generation: int) -> bytes:
    """A slot taken from an owner that died: zero, overhead unknown, the generation one higher."""
    return bytes(SlotLayout(generation=(generation + 1) % 2**64, overhead_bytes=OVERHEAD_UNKNOWN))


def usage(
    quota: Quota,
    ledger: Ledger,
    *,
    most_bytes: int = SANE_BYTES,
    measured: Mapping[int, int] | None = None,
) -> Usage:
    """The share's use in numbers, none above `most_bytes`, whatever a tenant wrote.

    A slot that claims more counts what the driver said of its process: `measured`, by slot index, else 0.
    """
    used = 0
    for slot in ledger.slots:
        counted = counted_bytes(slot, quota.context_estimate_bytes)
        if counted is None or counted > most_bytes:
            counted = (measured or {}).get(slot.index, 0)
        used += counted
    used = min(used, most_bytes)
    return Usage(
        limit_bytes=quota.memory_limit_bytes,
        used_bytes=used,
        peak_bytes=max(ledger.peak_bytes, used) if ledger.peak_bytes <= most_bytes else used,
        denied=min(ledger.denied, _LARGEST_JSON),
        processes=len(ledger.slots),
        throttled_ns=min(ledger.throttled_ns, _LARGEST_JSON),
    )
