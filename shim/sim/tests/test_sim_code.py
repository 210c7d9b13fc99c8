# SPDX-License-Identifier: Apache-2.0
"""What code takes of a GPU, and until when."""

from pathlib import Path

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, PAGE, Node, Probe
from shim.sim.tests.test_sim_compute import function, launch

KEPT = 0xABCDEF
PTX = 1
"""CU_JIT_INPUT_PTX."""
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


VARIABLES = """.version 8.0
.extern .global .align 4 .b8 elsewhere[16];
.visible .global .align 16 .b8 table[1000];
.global .v4 .f32 vector;
.const .u64 limits[3][4] = {1, 2};
.global .attribute(.managed) .align 8 .f16x2 pair;
.entry plain() { ld.global.u32 %r1, [table]; }
"""
SIZES = {"table": 1000, "vector": 16, "limits": 96, "pair": 4}


def variable(probe: Probe, module: int, name: str, symbol: str = "cuModuleGetGlobal_v2") -> tuple[int, int]:
    """Address and size."""
    answer = probe.call(symbol, {"out": 0}, {"out": 0}, module, name)
    assert answer.code == 0
    address, size = answer.outputs
    return address, size


@pytest.mark.parametrize("library", [False, True], ids=["module", "library"])
def test_variables_have_addresses_and_keep_what_is_written(node: Node, library: bool) -> None:
    probe = node.probe()
    probe.start()
    load = ("cuLibraryLoadData", {"out": 0}, VARIABLES, 0, 0, 0, 0, 0, 0)
    code = probe.call(*(load if library else ("cuModuleLoadData", {"out": 0}, VARIABLES))).outputs[0]
    symbol = "cuLibraryGetGlobal" if library else "cuModuleGetGlobal_v2"
    places = {name: variable(probe, code, name, symbol) for name in SIZES}
    assert {name: size for name, (_, size) in places.items()} == SIZES
    for name, (address, size) in places.items():
        assert probe.code("cuMemsetD8_v2", address, len(name), size) == 0
    for name, (address, size) in places.items():
        read = probe.call("cuMemcpyDtoH_v2", {"bytes": "00" * size}, address, size)
        assert read.outputs == [f"{len(name):02x}" * size]
    assert places["table"] == variable(probe, code, "table", symbol)
    assert probe.code("cuMemFree_v2", places["table"][0]) == 1
    assert loaded(node) == PAGE
    assert probe.code("cuLibraryUnload" if library else "cuModuleUnload", code) == 0
    assert loaded(node) == 0
    assert probe.code("cuMemsetD8_v2", places["table"][0], 0, 1) == 1


def test_variables_take_memory_beside_the_image(node: Node) -> None:
    probe = node.probe()
    probe.start()
    code = f".version 8.0\n.global .b8 large[{10 * MIB}];\n.entry plain() {{}}\n"
    module = probe.call("cuModuleLoadData", {"out": 0}, code).outputs[0]
    assert loaded(node) == 0
    assert variable(probe, module, "large")[1] == 10 * MIB
    assert loaded(node) == 6 * PAGE
    assert probe.code("cuModuleUnload", module) == 0
    assert loaded(node) == 0


def test_variables_end_with_their_context(node: Node) -> None:
    probe = node.probe()
    context = probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    module = probe.call("cuModuleLoadData", {"out": 0}, VARIABLES).outputs[0]
    address, _ = variable(probe, module, "table")
    assert probe.code("cuCtxDestroy_v2", made) == 0
    assert probe.code("cuCtxSetCurrent", context) == 0
    assert probe.code("cuMemsetD8_v2", address, 0, 1) == 1
    assert loaded(node) == 0


def test_what_is_no_variable_is_not_found(node: Node) -> None:
    probe = node.probe()
    probe.start()
    module = probe.call("cuModuleLoadData", {"out": 0}, VARIABLES).outputs[0]
    for code, name, size in [(500, "plain", 9), (500, "elsewhere", 9), (500, "", 9), (1, 0, 9)]:
        answer = probe.call("cuModuleGetGlobal_v2", {"out": 9}, {"out": size}, module, name)
        assert (answer.code, answer.outputs) == (code, [9, 9])
    assert probe.code("cuModuleGetGlobal_v2", 0, 0, module, "table") == 1
    assert probe.call("cuModuleGetGlobal_v2", 0, {"out": 0}, module, "table").outputs == [1000]
    assert probe.code("cuModuleGetGlobal_v2", {"out": 9}, 0, KEPT, "table") == 400


def linker(probe: Probe, *inputs: str) -> int:
    state = probe.call("cuLinkCreate_v2", 0, 0, 0, {"out": 0}).outputs[0]
    for text in inputs:
        assert probe.code("cuLinkAddData_v2", state, PTX, text, len(text), "a name", 0, 0, 0) == 0
    return int(state)


@pytest.mark.parametrize("load", ["cuModuleLoadData", "cuModuleLoadFatBinary", "cuLibraryLoadData"])
def test_linked_code_has_the_kernels_and_variables_of_all_inputs(node: Node, load: str) -> None:
    probe = node.probe()
    probe.start()
    state = linker(probe, CODE, VARIABLES)
    cubin, size = probe.call("cuLinkComplete", state, {"out": 0}, {"out": 0}).outputs
    assert size > len(CODE) + len(VARIABLES)
    code = probe.call(load, {"out": 0}, cubin, 0, 0, 0, 0, 0, 0).outputs[0]
    assert probe.code("cuLinkDestroy", state) == 0
    if load == "cuLibraryLoadData":
        assert variable(probe, code, "limits", "cuLibraryGetGlobal")[1] == 96
        assert probe.call("cuLibraryGetKernelCount", {"out": 0}, code).outputs == [3], "plain is in both"
        return
    assert {name: variable(probe, code, name)[1] for name in SIZES} == SIZES
    assert launch(probe, function(probe, code, "grow_3mib")) == 0
    assert loaded(node) == 2 * PAGE


def test_linker_takes_files(node: Node, tmp_path: Path) -> None:
    probe = node.probe()
    probe.start()
    (tmp_path / "code.ptx").write_text(CODE)
    state = linker(probe)
    assert probe.code("cuLinkAddFile_v2", state, PTX, str(tmp_path / "none"), 0, 0, 0) == 301
    assert probe.code("cuLinkAddFile_v2", state, PTX, str(tmp_path / "code.ptx"), 0, 0, 0) == 0
    (cubin, size) = probe.call("cuLinkComplete", state, {"out": 0}, {"out": 0}).outputs
    assert size > len(CODE)
    module = probe.call("cuModuleLoadData", {"out": 0}, cubin).outputs[0]
    assert launch(probe, function(probe, module, "plain")) == 0


def test_linker_refuses_what_it_cannot_link(node: Node) -> None:
    probe = node.probe()
    assert probe.code("cuLinkCreate_v2", 0, 0, 0, {"out": KEPT}) == 3
    probe.start()
    assert probe.code("cuLinkCreate_v2", 1, 0, 0, {"out": KEPT}) == 1
    assert probe.code("cuLinkCreate_v2", 0, 0, 0, 0) == 1
    state = linker(probe)
    assert probe.code("cuLinkComplete", state, {"out": KEPT}, {"out": KEPT}) == 1, "nothing to link"
    for code, kind, data, size in [
        (218, PTX, "text", 4),
        (200, 0, "text", 4),
        (1, PTX, 0, 4),
        (1, 9, CODE, 4),
    ]:
        assert probe.code("cuLinkAddData_v2", state, kind, data, size, 0, 0, 0, 0) == code
    assert probe.code("cuLinkAddData_v2", state, PTX, CODE, len(CODE), 0, 0, 0, 0) == 0
    assert probe.code("cuLinkComplete", state, {"out": KEPT}, 0) == 1
    assert probe.code("cuLinkComplete", state, {"out": KEPT}, {"out": KEPT}) == 0
    assert probe.code("cuLinkComplete", state, {"out": KEPT}, {"out": KEPT}) == 1, "complete"
    assert [probe.code("cuLinkDestroy", state) for _ in range(2)] == [0, 400]
