# SPDX-License-Identifier: Apache-2.0
"""The books hold what processes took, to the byte."""

import pytest

from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@pytest.mark.parametrize(
    "size", [PAGE, PAGE + 1, 3 * MIB, 8000 * MIB - 1], ids=["page", "page+1", "3MiB", "8000MiB-1"]
)
def test_a_large_allocation_takes_whole_pages(node: Node, size: int) -> None:
    probe = node.probe(group="g")
    probe.start()
    address = probe.allocate(size)
    assert node.group("g")["requested"] == size
    assert node.group("g")["used"] == CONTEXT + pages(size)
    assert probe.code("cuMemFree_v2", address) == 0
    assert node.group("g")["requested"] == 0
    assert node.group("g")["used"] == CONTEXT
    assert node.gpu()["peak"] == CONTEXT + pages(size)


def test_small_allocations_share_pages(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    addresses = [probe.allocate(size) for size in (1, 512, 513, MIB)]
    assert node.group("g")["requested"] == 1 + 512 + 513 + MIB
    assert node.gpu()["used"] == CONTEXT + PAGE
    more = probe.allocate(MIB)  # 512 + 512 + 1024 + 2 MiB in all: a second page
    assert node.gpu()["used"] == CONTEXT + 2 * PAGE
    for address in [*addresses, more]:
        assert address % 256 == 0
        assert probe.code("cuMemFree_v2", address) == 0
    assert node.gpu()["used"] == CONTEXT


def test_pitched_memory_is_charged_as_returned(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    answer = probe.call("cuMemAllocPitch_v2", {"out": 0}, {"out": 0}, 1000, 5000, 4)
    assert answer.code == 0
    assert answer.outputs[1] == 1024
    assert node.group("g")["requested"] == 1024 * 5000


def test_old_abi_allocates_below_4_gib(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    answer = probe.call("cuMemAlloc", {"out": 0}, 5 * MIB)
    assert answer.code == 0
    assert answer.outputs[0] < 1 << 32
    assert node.group("g")["requested"] == 5 * MIB
    assert probe.code("cuMemFree", answer.outputs[0]) == 0
    assert node.group("g")["requested"] == 0


def test_pinned_host_memory_is_not_the_gpus(node: Node) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call("cuMemHostAlloc", {"out": 0}, 64 * MIB, 0)
    assert answer.code == 0
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemFreeHost", answer.outputs[0]) == 0
    assert probe.code("cuMemFreeHost", answer.outputs[0]) == 1


def test_gpu_fills_to_the_last_page(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(L4_CAPACITY - CONTEXT - PAGE)
    assert probe.info() == (PAGE, L4_CAPACITY)
    last = probe.allocate(PAGE)
    assert probe.info() == (0, L4_CAPACITY)
    refused = probe.call("cuMemAlloc_v2", {"out": 77}, 1)
    assert (refused.code, refused.outputs) == (2, [77])
    assert probe.code("cuMemFree_v2", last) == 0
    assert probe.allocate(PAGE) == last, "addresses are reused at once"


def test_refused_memory_is_in_no_peak(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    for size in (L4_CAPACITY, L4_CAPACITY - CONTEXT + 1, 1 << 60):
        assert probe.code("cuMemAlloc_v2", {"out": 0}, size) == 2
    assert node.gpu()["peak"] == CONTEXT
    assert node.group("g")["peak"] == CONTEXT
    assert node.group("g")["requested_peak"] == 0


def test_a_full_gpu_refuses_a_context(node: Node) -> None:
    first = node.probe()
    first.start()
    first.allocate(L4_CAPACITY - CONTEXT - PAGE)
    second = node.probe()
    assert second.code("cuInit", 0) == 0
    answer = second.call("cuDevicePrimaryCtxRetain", {"out": 5}, 0)
    assert (answer.code, answer.outputs) == (2, [5])
    assert node.gpu()["used"] == L4_CAPACITY - PAGE


def test_destroying_a_context_frees_what_was_made_in_it(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    kept = probe.allocate(10 * MIB)
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0)
    assert made.code == 0
    probe.allocate(100 * MIB)
    probe.allocate(7)
    assert node.gpu()["used"] == 2 * CONTEXT + 110 * MIB + PAGE
    assert probe.code("cuCtxDestroy_v2", made.outputs[0]) == 0
    assert node.gpu()["used"] == CONTEXT + 10 * MIB
    assert node.group("g")["requested"] == 10 * MIB
    assert probe.code("cuMemFree_v2", kept) == 0


def test_primary_context_lives_until_the_last_release(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.retain()
    probe.allocate(PAGE)
    assert probe.code("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert node.gpu()["used"] == CONTEXT + PAGE
    assert probe.code("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert node.gpu()["used"] == 0
    assert probe.code("cuMemAlloc_v2", {"out": 0}, PAGE) == 709
    assert probe.code("cuDevicePrimaryCtxRelease_v2", 0) == 201


def test_processes_and_gpus_are_told_apart(empty_node: Node) -> None:
    empty_node.init("l4", "h100")
    one = empty_node.probe(group="one")
    two = empty_node.probe(group="two")
    one.start()
    two.start()
    one.allocate(100 * MIB)
    two.allocate(10 * MIB)
    two.retain(1)
    two.allocate(1000 * MIB)
    assert empty_node.gpu(0)["used"] == 2 * CONTEXT + 110 * MIB
    assert empty_node.gpu(1)["used"] == CONTEXT + 1000 * MIB
    assert empty_node.group("two", 0)["used"] == CONTEXT + 10 * MIB
    assert empty_node.group("two", 1)["used"] == CONTEXT + 1000 * MIB
    held = {(p["pid"], p["gpu"]): p["used"] for p in empty_node.books()["processes"]}
    assert held[one.popen.pid, empty_node.gpu(0)["uuid"]] == CONTEXT + 100 * MIB


def test_peak_of_a_group_is_its_highest_sum(node: Node) -> None:
    one = node.probe(group="g")
    two = node.probe(group="g")
    one.start()
    two.start()
    first = one.allocate(1000 * MIB)
    assert one.code("cuMemFree_v2", first) == 0
    second = two.allocate(600 * MIB)
    one.allocate(300 * MIB)
    assert two.code("cuMemFree_v2", second) == 0
    two.allocate(650 * MIB)
    assert node.group("g")["requested_peak"] == 1000 * MIB
    assert node.group("g")["peak"] == 2 * CONTEXT + 1000 * MIB


def test_memory_of_the_dead_is_in_no_later_peak(node: Node) -> None:
    dead = node.probe(group="g")
    dead.start()
    alive = node.probe(group="g")
    alive.start()
    dead.allocate(4000 * MIB)
    dead.kill()
    alive.allocate(4000 * MIB)  # nobody has looked since the death
    assert node.group("g")["requested_peak"] == 4000 * MIB
    assert node.gpu()["peak"] == 2 * CONTEXT + 4000 * MIB


def test_reset_lets_peaks_start_anew(node: Node) -> None:
    ended = node.probe(group="ended")
    ended.start()
    ended.end()
    probe = node.probe(group="g")
    probe.start()
    assert probe.code("cuMemFree_v2", probe.allocate(50 * MIB)) == 0
    assert node.tool("reset").returncode == 0
    assert node.gpu()["peak"] == CONTEXT
    assert [group["group"] for group in node.books()["groups"]] == ["g"]
    assert node.group("g")["requested_peak"] == 0
    probe.allocate(PAGE)
    assert node.group("g")["peak"] == CONTEXT + PAGE


def test_copies_keep_what_was_written(node: Node) -> None:
    probe = node.probe()
    probe.start()
    source = probe.allocate(1000)
    target = probe.allocate(1000)
    assert probe.code("cuMemcpyHtoD_v2", source, {"bytes": "00112233445566778899"}, 10) == 0
    assert probe.code("cuMemsetD8_v2", source + 2, 0xAB, 3) == 0
    assert probe.code("cuMemcpyDtoD_v2", target + 100, source, 10) == 0
    back = probe.call("cuMemcpyDtoH_v2", {"bytes": "ff" * 10}, target + 100, 10)
    assert back.outputs == ["0011ababab5566778899"]
    beyond = probe.call("cuMemcpyDtoH_v2", {"bytes": "ff" * 10}, target + 995, 10)
    assert (beyond.code, beyond.outputs) == (1, ["ff" * 10])


def test_large_memory_can_be_filled_without_host_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = probe.allocate(16000 * MIB)
    assert probe.code("cuMemsetD8_v2", address, 1, 16000 * MIB) == 0
    last = probe.call("cuMemcpyDtoH_v2", {"bytes": "ff"}, address + 16000 * MIB - 1, 1)
    assert (last.code, last.outputs) == (0, ["00"])
