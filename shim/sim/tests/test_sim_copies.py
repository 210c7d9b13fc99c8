# SPDX-License-Identifier: Apache-2.0
"""Rows and boxes are copied where they belong, or not at all."""

import struct
from typing import Any

import pytest

from shim.sim.tests.simnode import CONTEXT, Node, Probe
from shim.sim.tests.structs import raw
from shim.sim.tests.test_sim_arrays import create, volume

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4


def flat(
    source: tuple[int, int, int, int, int], target: tuple[int, int, int, int, int], width: int, height: int
) -> Any:
    """CUDA_MEMCPY2D; sides are (kind, address, x, y, pitch)."""
    sides = b""
    for kind, address, x, y, pitch in (source, target):
        array, plain = (address, 0) if kind == ARRAY else (0, address)
        sides += struct.pack("<QQi4xQQQQ", x, y, kind, plain, plain, array, pitch)
    return raw(sides + struct.pack("<QQ", width, height))


def deep(source: tuple[int, ...], target: tuple[int, ...], extent: tuple[int, int, int]) -> Any:
    """CUDA_MEMCPY3D; sides are (kind, address, x, y, z, pitch, height)."""
    sides = b""
    for kind, address, x, y, z, pitch, height in (source, target):
        sides += struct.pack("<QQQQi4xQQQQQQ", x, y, z, 0, kind, address, address, 0, 0, pitch, height)
    return raw(sides + struct.pack("<QQQ", *extent))


def read(probe: Probe, address: int, size: int) -> str:
    answer = probe.call("cuMemcpyDtoH_v2", {"bytes": "ee" * size}, address, size)
    assert answer.code == 0
    text: str = answer.outputs[0]
    return text


def numbered(probe: Probe, size: int) -> int:
    """Memory that holds 0, 1, 2, …"""
    address = probe.allocate(size)
    assert probe.code("cuMemcpyHtoD_v2", address, {"bytes": bytes(range(size)).hex()}, size) == 0
    return address


@pytest.mark.parametrize(
    "name", ["cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2"]
)
def test_rows_are_copied_with_their_pitches(node: Node, name: str) -> None:
    probe = node.probe()
    probe.start()
    source, target = numbered(probe, 64), probe.allocate(64)
    assert probe.code("cuMemsetD8_v2", target, 0xEE, 64) == 0
    copy = flat((DEVICE, source, 2, 1, 16), (UNIFIED, target, 1, 0, 8), 3, 3)
    assert probe.code(name, copy, *([0] if "Async" in name else [])) == 0
    assert read(probe, target, 24) == "ee121314eeeeeeeeee222324eeeeeeeeee323334eeeeeeee"


def test_boxes_are_copied_with_their_heights(node: Node) -> None:
    probe = node.probe()
    probe.start()
    source, target = numbered(probe, 128), probe.allocate(64)
    assert probe.code("cuMemsetD8_v2", target, 0xEE, 64) == 0
    copy = deep((DEVICE, source, 1, 1, 1, 8, 4), (DEVICE, target, 0, 0, 0, 4, 2), (2, 2, 2))
    for name in ("cuMemcpy3D_v2", "cuMemcpy3DAsync_v2_ptsz"):
        assert probe.code(name, copy, *([0] if "Async" in name else [])) == 0
        assert read(probe, target, 16) == "292aeeee3132eeee494aeeee5152eeee"
        assert probe.code("cuMemsetD8_v2", target, 0xEE, 64) == 0


def test_rows_are_filled_with_a_pitch(node: Node) -> None:
    probe = node.probe()
    probe.start()
    target = probe.allocate(64)
    for name, value, width, expected in [
        ("cuMemsetD2D8_v2", 0x11, 3, "111111eeeeeeeeee"),
        ("cuMemsetD2D16_v2_ptds", 0x2211, 2, "11221122eeeeeeee"),
        ("cuMemsetD2D32Async", 0x44332211, 1, "11223344eeeeeeee"),
    ]:
        assert probe.code("cuMemsetD8_v2", target, 0xEE, 64) == 0
        arguments = [0] if "Async" in name else []
        assert probe.code(name, target, 8, value, width, 2, *arguments) == 0
        assert read(probe, target, 24) == expected * 2 + "ee" * 8


def test_what_does_not_fit_changes_nothing(node: Node) -> None:
    probe = node.probe()
    probe.start()
    source, target = numbered(probe, 64), probe.allocate(64)
    array = create(probe, volume(16, 4, format_=1))
    assert probe.code("cuMemsetD8_v2", target, 0xEE, 64) == 0
    good = (DEVICE, target, 0, 0, 16)
    for bad in [
        flat((DEVICE, source, 0, 0, 16), good, 16, 5),
        flat((DEVICE, source, 1, 0, 16), good, 16, 4),
        flat((DEVICE, source, 0, 0, 8), good, 16, 2),
        flat((DEVICE, source, 0, 1 << 60, 16), good, 1, 1),
        flat((DEVICE, source, 0, 0, 1 << 62), good, 1, 8),
        flat((DEVICE, 0x1234, 0, 0, 16), good, 1, 1),
        flat((9, source, 0, 0, 16), good, 1, 1),
        flat((ARRAY, array, 0, 1, 0), good, 16, 4),
        flat((ARRAY, array, 1, 0, 0), good, 16, 1),
        flat((ARRAY, 0x1234, 0, 0, 0), good, 1, 1),
    ]:
        assert probe.code("cuMemcpy2D_v2", bad) == 1
    assert probe.code("cuMemcpy2D_v2", 0) == 1
    assert probe.code("cuMemsetD2D32_v2", target, 16, 0, 4, 5) == 1
    assert probe.code("cuMemsetD2D32_v2", target + 1, 16, 0, 1, 1) == 1
    assert probe.code("cuMemsetD2D8_v2", target, 8, 0, 16, 2) == 1
    assert read(probe, target, 64) == "ee" * 64
    assert probe.code("cuMemcpy2D_v2", flat((ARRAY, array, 0, 1, 0), good, 16, 3)) == 0
    assert read(probe, target, 48) == "00" * 48, "arrays keep no contents"
    assert node.gpu()["used"] > CONTEXT
