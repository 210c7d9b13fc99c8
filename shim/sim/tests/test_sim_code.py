# SPDX-License-Identifier: Apache-2.0
"""What code takes of a GPU, and until when."""

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, PAGE, Node
from shim.sim.tests.test_sim_compute import function, launch

CODE = ".version 8.0\n.entry plain() {}\n.entry grow_3mib() {}\n.entry grow_512kib_20us() {}\n"


def loaded(node: Node) -> int:
    """Bytes on the GPU beside one context."""
    return int(node.gpu()["used"]) - CONTEXT


@pytest.mark.parametrize("first", ["cuLaunchKernel", "cuFuncLoad"])
def test_code_takes_memory_when_it_is_first_used(node: Node, first: str) -> None:
    probe = node.probe()
    probe.start()
    module = probe.call("cuModuleLoadData", {"out": 0}, CODE).outputs[0]
    plain, grow = function(probe, module, "plain"), function(probe, module, "grow_3mib")
    assert loaded(node) == 0
    for _ in range(2):
        assert probe.code(first, plain, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 0
        assert loaded(node) == PAGE, "whole pages"
    for _ in range(2):
        assert probe.code(first, grow, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 0
        assert loaded(node) == 2 * PAGE, "by its name: 3 MiB, and those of the image"
    assert launch(probe, function(probe, module, "grow_512kib_20us")) == 0
    assert launch(probe, function(probe, module, "grow_512kib_20us")) == 0
    assert loaded(node) == 2 * PAGE
    assert probe.code("cuModuleUnload", module) == 0
    assert loaded(node) == 0


def test_eager_code_is_there_before_its_first_use(node: Node) -> None:
    probe = node.probe("env", "CUDA_MODULE_LOADING=EAGER")
    probe.start()
    module = probe.call("cuModuleLoadData", {"out": 0}, CODE).outputs[0]
    assert loaded(node) == PAGE
    assert probe.code("cuModuleUnload", module) == 0
    assert loaded(node) == 0


def test_code_that_does_not_fit_is_not_launched(node: Node) -> None:
    probe = node.probe()
    probe.start()
    module = probe.call("cuModuleLoadData", {"out": 0}, CODE).outputs[0]
    kernel = function(probe, module, "grow_3mib")
    address = probe.allocate(probe.info()[0] - PAGE)
    assert launch(probe, kernel) == 2
    assert probe.info()[0] == 0, "the image's own page is there"
    assert launch(probe, function(probe, module, "plain")) == 0
    assert probe.code("cuMemFree_v2", address) == 0
    assert launch(probe, kernel) == 0
    assert loaded(node) == 2 * PAGE
    assert probe.code("cuModuleUnload", module) == 0
    assert loaded(node) == 0


def test_code_ends_with_its_context(node: Node) -> None:
    probe = node.probe()
    probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    module = probe.call("cuModuleLoadData", {"out": 0}, CODE).outputs[0]
    assert launch(probe, function(probe, module, "grow_3mib")) == 0
    assert node.gpu()["used"] == 2 * CONTEXT + 2 * PAGE
    assert probe.code("cuCtxDestroy_v2", made) == 0
    assert loaded(node) == 0
    assert node.gpu()["peak"] == 2 * CONTEXT + 4 * MIB
