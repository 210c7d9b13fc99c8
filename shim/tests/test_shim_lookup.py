# SPDX-License-Identifier: Apache-2.0
"""Every way to a symbol leads to a hook, or to exactly what the driver would have given."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shim import abis
from shim.tests.conftest import LIMIT, Clients
from shim.tests.probe import NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS, Probe
from shim.tests.sandbox import ROOT, SHIM, SIM, Sandbox

Start = Callable[..., Probe]


def _driver_objects() -> dict[str, Path]:
    """What the simulated driver is linked from, by name; what an earlier build left is not."""
    sources = {path.stem for folder in (ROOT / "shim/sim", SIM / "gen") for path in folder.glob("*.c")}
    found = {path.stem: path for path in sorted((SIM / "obj").glob("*.o")) if path.stem in sources}
    return {stem: path for stem, path in found.items() if not stem.startswith(("nvml", "tool", "smi"))}


@pytest.mark.parametrize(
    "way",
    ["handle", "handle-lazy", "default", "default-without-driver", "next", "dlvsym", "libc-dlsym",
     "proc-address", "proc-address-11", "namespace"],
)  # fmt: skip
def test_way_to_a_symbol(node: Sandbox, share: Path, clients: Clients, way: str) -> None:
    out = node.run(clients.build("ways", "-ldl"), way).stdout
    assert out == f"{SHIM} {OUT_OF_MEMORY}\n"


@pytest.mark.parametrize("bind", ["now", "lazy"])
@pytest.mark.parametrize("way", ["plugin", "plugin-deepbind"])
def test_plugin_linked_against_the_driver(
    node: Sandbox, share: Path, clients: Clients, way: str, bind: str
) -> None:
    plugin = clients.plugin(f"plugin-{bind}.so", f"-Wl,-z,{bind}", source="plugin.c")
    out = node.run(clients.build("ways", "-ldl"), way, plugin).stdout
    assert out == f"{SHIM} {OUT_OF_MEMORY}\n"


@pytest.mark.parametrize("bind", ["now", "lazy"])
def test_second_copy_in_a_new_namespace_is_harmless(
    node: Sandbox, share: Path, clients: Clients, bind: str
) -> None:
    plugin = clients.plugin(f"plugin-{bind}.so", f"-Wl,-z,{bind}", source="plugin.c")
    out = node.run(clients.build("ways", "-ldl"), "plugin-namespace", plugin).stdout
    assert out.split()[1] == str(NOT_PERMITTED)


def test_second_copy_from_another_file_is_harmless(
    node: Sandbox, share: Path, clients: Clients, tmp_path: Path, start: Start
) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes((SIM / "libcuda.so.1").read_bytes())
    probe = start(node, libraries=("libcuda.so.1",))
    probe.begin()
    other = start(node, libraries=(str(copy), "libcuda.so.1"))
    assert other.call("cuInit", 0).result == SUCCESS, "the first copy is the driver, whatever its name"
    assert other.alloc(LIMIT + 1)[0] != SUCCESS
    out = node.run(clients.build("copies", "-ldl", source="copies.c"), "libcuda.so.1", str(copy)).stdout
    assert out.split() == ["0", str(NOT_PERMITTED)]


def test_linked_program(node: Sandbox, share: Path, clients: Clients) -> None:
    assert node.run(clients.linked("linked")).stdout == f"{OUT_OF_MEMORY}\n"


@pytest.mark.parametrize("separate", ["separate-code", "noseparate-code"])
def test_driver_by_an_old_linker_whose_table_lies_beside_code(
    node: Sandbox, share: Path, clients: Clients, tmp_path: Path, separate: str
) -> None:
    """Its table is left alone; exports and dlsym still lead to the hooks."""
    folder = tmp_path / separate
    folder.mkdir()
    wanted = [str(path) for path in _driver_objects().values()]
    subprocess.run(
        ["cc", "-shared", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-z,{separate}", "-Wl,-soname,libcuda.so.1",
         "-o", str(folder / "libcuda.so.1"), *wanted],
        check=True, timeout=60,
    )  # fmt: skip
    env = node.environment() | {"LD_LIBRARY_PATH": f"{folder}:{SIM}"}
    for way in ("handle", "default", "next", "proc-address"):
        out = node.run(clients.build("ways", "-ldl"), way, env=env).stdout
        assert out == f"{SHIM} {OUT_OF_MEMORY}\n", way
    assert node.run(clients.linked("linked"), env=env).stdout == f"{OUT_OF_MEMORY}\n"


@pytest.mark.parametrize("order", ["shim-first", "shim-last"])
def test_another_preload_beside_ours(node: Sandbox, share: Path, clients: Clients, order: str) -> None:
    neighbour = clients.build("neighbour.so", "-shared", "-fPIC", "-ldl", source="neighbour.c")
    node.preload = (str(SHIM), neighbour) if order == "shim-first" else (neighbour, str(SHIM))
    for way in ("handle", "default", "next", "proc-address"):
        done = node.run(clients.build("ways", "-ldl"), way)
        assert done.stdout.split()[1] == str(OUT_OF_MEMORY), way
        _, _, allocations, recursion = done.stderr.split("\n")[-2].split()
        assert recursion == "0", "nobody gets itself as the next"
        if order == "shim-last" and way == "default":
            assert allocations == "1", "passed once on the way to us"
    done = node.run(clients.linked("linked"))
    assert done.stdout == f"{OUT_OF_MEMORY}\n"


_NAMES: Final = (
    "cuMemAlloc", "cuMemFree", "cuCtxCreate", "cuMemAllocAsync", "cuMemGetInfo", "cuDeviceTotalMem",
    "cuLaunchKernel", "cuMemcpyHtoD", "cuGetProcAddress", "cuGraphAddNode", "cuNoSuchThing",
)  # fmt: skip


@pytest.mark.parametrize("symbol", ["cuGetProcAddress", "cuGetProcAddress_v2"])
def test_proc_address_of_all_versions_and_flags(
    node: Sandbox, share: Path, start: Start, symbol: str
) -> None:
    """The driver chooses; only the address is ours. What it lacks, we lack."""
    probe, bare = start(node), start(node, bare=True)
    status = ("&11",) if symbol.endswith("_v2") else ()
    for name in _NAMES:
        for version in (2000, 3010, 3020, 4000, 7000, 11020, 11030, 11040, 12000, 12050, 13000):
            for flags in (0, 1, 2):
                answers = []
                for one in (probe, bare):
                    one.reset(10)
                    one.reset(11)
                    answers.append(one.call(symbol, f"={name}", "&10", version, flags, *status))
                ours, theirs = answers
                where = f"{name} {version} {flags}"
                assert ours.result == theirs.result, where
                assert ours.cells.get(11) == theirs.cells.get(11), where
                assert (ours.cells.get(10) in (None, 0)) == (theirs.cells.get(10) in (None, 0)), where


@pytest.fixture
def hidden_driver(clients: Clients, tmp_path: Path) -> str:
    """A folder with a driver whose cuGetProcAddress answers with addresses that it does not export."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    objects = _driver_objects()
    names = set(re.findall(r"^AQ_ABI\((\w+)", (ROOT / "shim/src/abis.def").read_text(), re.MULTILINE))
    jumps = "".join(
        f".globl hidden_{name}\n.hidden hidden_{name}\nhidden_{name}: endbr64\n jmp {name}\n"
        for name in names
    )
    (folder / "jumps.S").write_text(f'{jumps}.section .note.GNU-stack,"",@progbits\n')
    renamed = [f"--redefine-sym={name}=hidden_{name}" for name in names]
    subprocess.run(["objcopy", *renamed, str(objects["cuda_table"]), str(folder / "table.o")], check=True)
    rest = [str(path) for stem, path in objects.items() if stem != "cuda_table"]
    subprocess.run(
        ["cc", "-shared", "-pthread", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1",
         "-o", str(folder / "libcuda.so.1"), *rest, str(folder / "table.o"), str(folder / "jumps.S")],
        check=True, timeout=60,
    )  # fmt: skip
    return str(folder)


def test_addresses_that_the_driver_does_not_export_lead_to_the_hooks(
    node: Sandbox, share: Path, clients: Clients, start: Start, hidden_driver: str
) -> None:
    env = node.environment() | {"LD_LIBRARY_PATH": f"{hidden_driver}:{SIM}"}
    for way in ("proc-address", "proc-address-11", "handle"):
        out = node.run(clients.build("ways", "-ldl"), way, env=env).stdout
        assert out == f"{SHIM} {OUT_OF_MEMORY}\n", way
    probe, usual = start(node, env=env), start(node)
    for base, version, flags in _hooked_abis():
        for one in (probe, usual):
            one.reset(10)
        answers = [
            one.call("cuGetProcAddress_v2", f"={base}", "&10", version, flags, "&11").result
            for one in (probe, usual)
        ]
        assert answers[0] == answers[1]
        if answers[1] != SUCCESS:
            continue  # newer than the simulated driver
        names = [one.command("!symbol 10") for one in (probe, usual)]
        assert names[0] == names[1], f"{base} {version} {flags}"
        assert names[0].startswith(base)


def _hooked_abis() -> list[tuple[str, int, int]]:
    """Name, version and flags to ask for each ABI that is hooked."""
    rows = re.findall(r"^AQ_ABI\((\w+), (\w+), (\d+)\)", (ROOT / "shim/src/abis.def").read_text(), re.M)
    return [(base, int(version), 2 if "_pt" in symbol[-5:] else 1) for symbol, base, version in rows]


def test_table_of_abis_is_that_of_the_newest_headers() -> None:
    assert abis.TABLE.read_text() == abis.table(), "python -m shim.abis"


def test_missing_symbols_stay_missing(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    assert probe.command("cuNoSuchThing 1") == "missing"
    assert probe.command("nvmlNoSuchThing 1") == "missing"


def test_program_without_a_driver_hears_that_there_is_none(node: Sandbox, share: Path, start: Start) -> None:
    env = node.environment() | {"LD_LIBRARY_PATH": "/nonexistent"}
    probe = start(node, libraries=(str(SHIM),), env=env)
    assert probe.call("cuInit", 0).result == 100
    assert probe.call("nvmlInit_v2").result == 12
    assert probe.alloc(1)[0] != SUCCESS
