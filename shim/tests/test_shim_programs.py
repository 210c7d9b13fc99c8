# SPDX-License-Identifier: Apache-2.0
"""Programs of all kinds: setuid, unprivileged, many at once, with children, out of reach of a preload."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import LIMIT, Clients
from shim.tests.probe import NO_DEVICE, NOT_INITIALIZED, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS, Probe, ended
from shim.tests.sandbox import MIB, SIM, Sandbox

Start = Callable[..., Probe]
SLOTS: Final = region.SLOTS
_AS_NOBODY: Final = """
cp "$1" /run/program; chmod "$2" /run/program
mkdir /run/node; mount --bind "$3" /run/node; chmod -R a+rwX /run/node
shift 3
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


def nobody(node: Sandbox, program: str, mode: str, commands: list[str]) -> list[str]:
    """The answers of a probe that an unprivileged user starts, with mode `mode` for its file."""
    libraries = ("/run/program", str(SIM / "libcuda.so.1"))
    env = {"PATH": os.environ["PATH"], "ALIQUOT_SIM_ROOT": "/run/node", "ALIQUOT_SIM_GROUP": node.group}
    if not node.through_file:
        env["LD_PRELOAD"] = " ".join(node.preload)
    inner = ["sh", "-ec", _AS_NOBODY, "sh", program, mode, str(node.node), *libraries]
    process = node.start(*inner, env=env)
    out, errors = process.communicate("\n".join(commands) + "\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    return [line.split()[0] for line in out.splitlines()]


_FILL: Final = [
    "cuInit 0",
    "cuCtxCreate_v2 &1 0 0",
    f"cuMemAlloc_v2 &2 {LIMIT + 1}",
    f"cuMemAlloc_v2 &3 {LIMIT}",
]
_HELD: Final = [str(answer) for answer in (SUCCESS, SUCCESS, OUT_OF_MEMORY, SUCCESS)]


def test_setuid_program_is_held(node: Sandbox, share: Path, clients: Clients) -> None:
    """ld.so ignores the environment there, not /etc/ld.so.preload."""
    node.through_file = True
    assert nobody(node, clients.probe(), "4755", _FILL) == _HELD


def test_unprivileged_program_is_held(node: Sandbox, share: Path, clients: Clients) -> None:
    assert nobody(node, clients.probe(), "0755", _FILL) == _HELD


@pytest.mark.parametrize("leaf", ["quota", "ledger"])
def test_files_that_a_user_may_not_open_give_no_gpu(
    node: Sandbox, share: Path, clients: Clients, leaf: str
) -> None:
    (share / leaf).chmod(0o600)
    assert nobody(node, clients.probe(), "0755", ["cuInit 0", "nvmlInit_v2"])[0] == str(NOT_PERMITTED)


@pytest.mark.parametrize("count", [300, SLOTS + 1])
def test_as_many_processes_as_there_are_slots(
    node: Sandbox, share: Path, clients: Clients, count: int
) -> None:
    crowd = node.start(clients.linked("crowd"), str(count))
    assert crowd.stdout is not None
    good, refused = map(int, crowd.stdout.readline().split())
    assert (good, refused) == (min(count, SLOTS), max(0, count - SLOTS))
    slots = shares.slots(share)
    assert len({slot.pid for slot in slots}) == len(slots) == good
    assert ended(crowd)[0] == 0


def test_slots_of_a_crowd_are_free_again(node: Sandbox, share: Path, clients: Clients, start: Start) -> None:
    crowd = node.start(clients.linked("crowd"), str(SLOTS))
    assert crowd.stdout is not None
    crowd.stdout.readline()
    late = start(node)
    assert late.call("cuInit", 0).result == NOT_PERMITTED
    assert ended(crowd)[0] == 0
    late.begin()
    assert late.alloc(LIMIT)[0] == SUCCESS


@pytest.mark.parametrize("way", ["vfork", "spawn", "clone", "thread"])
def test_children_of_every_making_at_every_stage(
    node: Sandbox, share: Path, clients: Clients, start: Start, way: str
) -> None:
    stages = [NOT_INITIALIZED, 201, SUCCESS, SUCCESS, OUT_OF_MEMORY]
    done = node.run(clients.linked("children"), way)
    assert [int(word) for word in done.stdout.split()] == stages
    assert done.stderr == ""
    late = start(node)
    late.begin()
    assert late.alloc(LIMIT)[0] == SUCCESS, "nobody holds a lock for the dead"


def fill(path: Path) -> None:
    """Writes until there is no space left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(path).f_bavail == 0


def test_full_disk_stops_nobody(node: Sandbox, tmp_path: Path, start: Start) -> None:
    """The ledger's pages are there from the first day."""
    disk = tmp_path / "shares"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True, timeout=30)
    try:
        share = shares.make(node, gpu=node.gpu(), limit=LIMIT)
        fill(disk / "rest")
        probe = start(node)
        probe.begin()
        assert probe.alloc(LIMIT)[0] == SUCCESS
        assert probe.alloc(1)[0] == OUT_OF_MEMORY
        assert shares.usage(share).used_bytes == LIMIT
        probe.kill()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=30)


@pytest.mark.parametrize("kind", ["static", "musl"])
def test_program_without_our_libc_is_out_of_reach_and_cannot_load_a_driver_of_glibcs(
    node: Sandbox, share: Path, tmp_path: Path, kind: str
) -> None:
    """What is documented: no preload reaches it. It runs as ever; what it does to a GPU the agent sees."""
    compiler = "musl-gcc" if kind == "musl" else "cc"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} (package musl-tools)")
    source, program = tmp_path / "plain.c", tmp_path / "plain"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n')
    flags = ["-static"] if kind == "static" else []
    subprocess.run([compiler, *flags, "-o", str(program), str(source)], check=True, timeout=60)
    node.through_file = True
    done = node.run(str(program))
    assert (done.stdout, done.stderr) == ("runs\n", "")


@pytest.mark.parametrize("client", ["linked", "children"])
def test_valgrind_finds_nothing(node: Sandbox, share: Path, clients: Clients, client: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    check = (
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    )
    done = node.run(*check, clients.linked(client), check=False)
    assert (done.returncode, done.stderr) == (0, "")


VISIBLE: Final[dict[str, Callable[[list[str]], str]]] = {
    "index": lambda uuids: "1",
    "order": lambda uuids: "2,0",
    "uuid": lambda uuids: uuids[2],
    "uuid-prefix": lambda uuids: uuids[1][:12],
    "uuids-in-order": lambda uuids: f"{uuids[1]},{uuids[0]}",
    "empty": lambda uuids: "",
    "minus-one": lambda uuids: "-1",
    "ends-at-minus-one": lambda uuids: "1,-1,0",
    "duplicate": lambda uuids: "0,0",
    "duplicate-uuid": lambda uuids: f"{uuids[0]},{uuids[0]}",
    "ends-at-nonsense": lambda uuids: "2,nonsense,0",
    "none-such": lambda uuids: "7",
    "no-device-files": lambda uuids: "NoDevFiles",
    "ambiguous": lambda uuids: "GPU-",
    "partition": lambda uuids: "MIG-00000000-0000-0000-0000-000000000000",
    "spaces": lambda uuids: " 1 , 0",
}


@pytest.mark.parametrize("setting", VISIBLE.values(), ids=VISIBLE)
def test_share_is_found_by_uuid_however_devices_are_hidden(
    tmp_path: Path, start: Start, setting: Callable[[list[str]], str]
) -> None:
    node = Sandbox(folder=tmp_path)
    node.start_node("l4:3")
    uuids = [str(gpu["uuid"]) for gpu in node.books()["gpus"]]
    for index, uuid in enumerate(uuids):
        shares.make(node, gpu=uuid, limit=(index + 1) * 256 * MIB, name=f"share-{index}")
    env = node.environment() | {"CUDA_VISIBLE_DEVICES": setting(uuids)}
    probe, bare = start(node, env=env), start(node, env=env | {"LD_PRELOAD": ""}, bare=True)
    result = bare.call("cuInit", 0).result
    assert probe.call("cuInit", 0).result == result
    if result != SUCCESS:
        assert result == NO_DEVICE
        return
    counts = [one.ok("cuDeviceGetCount", "&1").cells.get(1, 0) & 0xFFFFFFFF for one in (probe, bare)]
    assert counts[0] == counts[1] > 0
    for ordinal in range(counts[0]):
        for cell in (4, 5, 6):
            probe.reset(cell)
        words = probe.ok("cuDeviceGetUuid_v2", "&4", ordinal).cells
        raw = b"".join(words[cell].to_bytes(8, "little") for cell in (4, 5))
        index = [region.uuid_bytes(uuid) for uuid in uuids].index(raw)
        assert probe.ok("cuDeviceTotalMem_v2", "&6", ordinal).cells[6] == (index + 1) * 256 * MIB
