# SPDX-License-Identifier: Apache-2.0
"""`aliquot run` and `ps` on a simulated machine: real programs, the real library, the driver's own books."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from aliquot_agent import region
from aliquot_api.errors import InvalidInput
from aliquot_cli.workstation import Card, LocalShare, Run, Workstation, check_room, choose, root_of
from tests.system.images import ROOT
from tests.system.test_docs import commands

SIM: Final = ROOT / "build/sim"
LIBRARY: Final = ROOT / "build/shim/libaliquot.so"
ALIQUOT: Final = Path(sys.executable).with_name("aliquot")
MIB: Final = 1 << 20
NOBODY: Final = 65534

FILL: Final = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, address = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
blocks = 0
while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)) == 0:
    blocks += 1
print(total.value >> 20, blocks * 64, flush=True)
sys.stdin.read()
"""
"""Says what it sees and what it could take, in MiB; ends with its input."""


class Machine:
    """A machine with a simulated L4 and two T4, and a user on it."""

    def __init__(self, folder: Path, *, user: int = 0) -> None:
        self.folder = folder
        self.user = user
        self.node = folder / "node"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "session"),
            "LD_LIBRARY_PATH": str(SIM),
            "ALIQUOT_SIM_ROOT": str(self.node),
            "ALIQUOT_LIBRARY": str(LIBRARY),
        }
        (folder / "session").mkdir()
        os.chown(folder / "session", user, user)
        init = [str(SIM / "aliquot-sim"), "init", "--root", str(self.node), "--node", "workstation"]
        gpus = ["--gpu", "l4", "--gpu", "t4:2"]
        subprocess.run([*init, *gpus], check=True, capture_output=True, timeout=60)
        for path in (self.node, *self.node.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [str(ALIQUOT), *words],
            env=self.environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            cwd="/",
            user=self.user,
            group=self.user,
            extra_groups=[],
        )

    def aliquot(self, *words: str, status: int = 0) -> str:
        process = self.start(*words)
        said, complained = process.communicate(timeout=60)
        assert process.returncode == status, complained
        return said if status == 0 else complained

    def ps(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.aliquot("ps", "-o", "json"))
        return found

    def runs_on_disk(self) -> list[Path]:
        folder = self.folder / "session/aliquot"
        return [path for path in folder.iterdir() if path.name != "lock"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def users_machine() -> Iterator[Machine]:
    """For a user who is nobody special, who cannot look into root's temporary folders."""
    for path in (ALIQUOT, LIBRARY):
        if not all(os.stat(part).st_mode & 0o001 for part in (*path.resolve().parents,)):
            pytest.skip(f"{path} lies in a folder that only its owner may enter")
    with tempfile.TemporaryDirectory(prefix="aliquot-test-") as folder:
        Path(folder).chmod(0o755)
        yield Machine(Path(folder), user=NOBODY)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    assert process.stderr
    line = process.stdout.readline().strip()
    assert line, process.stderr.read()
    return line


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("whose", ["machine", "users_machine"], ids=["root", "a user"])
def test_a_program_has_its_share_and_ps_shows_it(whose: str, request: pytest.FixtureRequest) -> None:
    machine: Machine = request.getfixturevalue(whose)
    first = machine.start("run", "--memory", "1Gi", "--cores", "30", "--", sys.executable, "-c", FILL)
    assert heard(first) == "1024 1024"
    second = machine.start("run", "--memory", "512Mi", "--", sys.executable, "-c", FILL)
    assert heard(second) == "512 512"

    one, two = machine.ps()
    assert one["pid"] == first.pid  # it became the program
    [share] = one["shares"]
    assert (share["limit"], share["used"], share["denied"]) == (1024 * MIB, 1024 * MIB, 1)
    assert (share["processes"], share["cores"]) == (1, 30)
    assert two["shares"][0]["gpu"] == share["gpu"]
    assert str(first.pid) in machine.aliquot("ps")

    assert [ended(first), ended(second)] == [0, 0]
    assert machine.ps() == []
    assert machine.runs_on_disk() == []


def test_the_commands_of_the_page_work_as_they_stand(machine: Machine, tmp_path: Path) -> None:
    places = tmp_path / "bin"
    places.mkdir()
    (places / "nvidia-smi").symlink_to(SIM / "aliquot-smi")
    machine.environment["PATH"] = f"{places}:{ALIQUOT.parent}:{os.environ['PATH']}"
    said = [
        subprocess.run(
            ["bash", "-c", command],
            env=machine.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for command in commands("docs/workstation.md")
    ]
    assert "4096MiB" in said[0].replace(" ", "")
    assert said[1] == "two GPUs, 2Gi of each\n"


def test_a_share_of_several_gpus(machine: Machine) -> None:
    process = machine.start(
        "run", "--memory", "1Gi", "--gpu", "0", "--gpu", "2", "--", sys.executable, "-c", FILL
    )
    assert heard(process) == "1024 1024"
    [run] = machine.ps()
    assert len({share["gpu"] for share in run["shares"]}) == 2
    assert ended(process) == 0


def test_the_exit_status_is_the_programs(machine: Machine) -> None:
    machine.aliquot("run", "--memory", "1Gi", "--", "sh", "-c", "exit 7", status=7)


def test_what_does_not_fit_is_refused(machine: Machine) -> None:
    holder = machine.start("run", "--memory", "12Gi", "--", sys.executable, "-c", FILL)
    heard(holder)
    said = machine.aliquot("run", "--memory", "12Gi", "--", "true", status=1)
    assert "--memory: invalid value '12Gi'" in said
    assert "12Gi are given to shares" in said
    assert "want one of 0 (GPU-" in machine.aliquot(
        "run", "--memory", "1Gi", "--gpu", "9", "--", "true", status=1
    )
    machine.aliquot("run", "--memory", "12Gi", "--gpu", "1", "--", "true")
    ended(holder)
    machine.aliquot("run", "--memory", "12Gi", "--", "true")


def test_memory_in_use_by_others_is_not_given(machine: Machine) -> None:
    environment = {key: value for key, value in machine.environment.items() if key != "ALIQUOT_LIBRARY"}
    take = FILL.replace("while", "for _ in range(160):\n   ").replace(
        " == 0:\n    blocks += 1", "; blocks += 1"
    )
    pipe = subprocess.PIPE
    other = subprocess.Popen(
        [sys.executable, "-c", take], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    heard(other)
    said = machine.aliquot("run", "--memory", "13Gi", "--", "true", status=1)
    assert "in use by others" in said
    ended(other)
    machine.aliquot("run", "--memory", "13Gi", "--", "true")


def test_a_share_lives_as_long_as_any_process_of_it(machine: Machine) -> None:
    """The program that was run is killed; a child of it, in a session of its own, still has the share."""
    parent = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FILL!r}], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = machine.start("run", "--memory", "1Gi", "--", sys.executable, "-c", parent)
    child = int(heard(process))
    assert heard(process) == "1024 1024"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert [run["pid"] for run in machine.ps()] == [process.pid]
    os.kill(child, signal.SIGKILL)
    wait(lambda: machine.ps() == [], "the share of a killed program to be cleared away")
    assert machine.runs_on_disk() == []


def test_the_limit_cannot_be_written_to_from_inside(machine: Machine) -> None:
    spoil = "echo spoilt > /run/aliquot/shares/*/quota; cat /run/aliquot/shares/*/quota | head -c 8"
    process = machine.start("run", "--memory", "1Gi", "--", "bash", "-c", spoil)
    said, complained = process.communicate(timeout=60)
    assert said == "ALIQUOTQ"
    assert "Read-only file system" in complained


def test_a_spoilt_ledger_hides_no_other_share(machine: Machine) -> None:
    spoil = "echo spoilt > /run/aliquot/shares/*/ledger; echo done; exec sleep 600"
    spoiler = machine.start("run", "--memory", "1Gi", "--", "bash", "-c", spoil)
    assert heard(spoiler) == "done"
    [run] = machine.ps()
    assert (run["shares"][0]["limit"], run["shares"][0]["used"]) == (1024 * MIB, 0)
    spoiler.kill()
    ended(spoiler)
    assert machine.ps() == []


def test_an_empty_preload_file_binds_programs_that_clear_their_environment(machine: Machine) -> None:
    kept = [f"{name}={machine.environment[name]}" for name in ("LD_LIBRARY_PATH", "ALIQUOT_SIM_ROOT")]
    fill = [sys.executable, "-c", FILL]
    bare = machine.start("run", "--memory", "1Gi", "--", "env", "-i", *kept, *fill)
    assert heard(bare).split()[0] != "1024"  # LD_PRELOAD is gone
    ended(bare)

    etc = machine.folder / "etc"
    setup = f'cp -a /etc {etc}; touch {etc}/ld.so.preload; mount --bind {etc} /etc; exec "$@"'
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", setup, "sh", str(ALIQUOT)]
    pipe = subprocess.PIPE
    bound = subprocess.Popen(
        [*inside, "run", "--memory", "1Gi", "--", "env", "-i", *kept, *fill],
        env=machine.environment,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    assert heard(bound) == "1024 1024"
    assert ended(bound) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--memory", "8000", "--", "true"], "did you mean 8000Mi?"),
        (["--memory", "1Gi"], "want aliquot run --memory SIZE -- PROGRAM"),
        (["--memory", "1Gi", "--cores", "101", "--", "true"], "want 0 to 100"),
        (["--memory", "1Gi", "--library", "/none/such.so", "--", "true"], "want the path of libaliquot.so"),
        (["--memory", "1Gi", "--", "/none/such"], "No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(machine: Machine, words: list[str], says: str) -> None:
    assert says in machine.aliquot("run", *words, status=1)
    assert machine.ps() == []


def test_without_a_driver_it_says_so(machine: Machine) -> None:
    del machine.environment["LD_LIBRARY_PATH"]
    assert "NVIDIA's driver" in machine.aliquot("run", "--memory", "1Gi", "--", "true", status=1)


def card(index: int = 0, *, used: int = 0) -> Card:
    return Card(index, f"GPU-0000000{index}-0000-0000-0000-000000000000", "L4", 1000 * MIB, used)


def run(*, limit: int, used: int = 0, cores: int = 0) -> Run:
    share = LocalShare(card().uuid, cores, region.Usage(limit, used, used, 0, 1))
    return Run("r", Path("/"), 1, ("true",), 0.0, (share,))


@pytest.mark.parametrize(
    ("others", "used", "wanted", "fits"),
    [
        pytest.param([], 0, 1000, True, id="all of an empty one"),
        pytest.param([], 1, 1000, False, id="a stranger holds 1 MiB"),
        pytest.param([run(limit=400 * MIB)], 0, 600, True, id="beside a share"),
        pytest.param([run(limit=400 * MIB)], 0, 601, False, id="1 MiB too much"),
        pytest.param([run(limit=400 * MIB, used=400 * MIB)], 400, 600, True, id="a share's use is its own"),
        pytest.param([run(limit=400 * MIB, used=100 * MIB)], 150, 550, True, id="and 50 MiB a stranger's"),
        pytest.param([run(limit=400 * MIB, used=100 * MIB)], 150, 551, False, id="1 MiB more"),
    ],
)
def test_shares_and_strangers_are_counted(others: list[Run], used: int, wanted: int, fits: bool) -> None:
    def check() -> None:
        check_room(card(used=used * MIB), others, memory_bytes=wanted * MIB, cores_percent=0)

    if fits:
        check()
        return
    with pytest.raises(InvalidInput, match="left"):
        check()


def test_cores_are_given_once() -> None:
    with pytest.raises(InvalidInput, match="30 percent left"):
        check_room(card(), [run(limit=MIB, cores=70)], memory_bytes=MIB, cores_percent=31)


def test_gpus_are_chosen_by_index_or_uuid() -> None:
    cards = [card(0), card(1)]
    assert choose(cards, []) == [cards[0]]
    assert choose(cards, ["1", cards[0].uuid[:12]]) == [cards[1], cards[0]]
    for wrong in (["2"], ["GPU-0000000"], ["0", "0"]):
        with pytest.raises(InvalidInput, match="want one of 0"):
            choose(cards, wrong)


def test_runs_are_where_the_session_is() -> None:
    assert root_of({"XDG_RUNTIME_DIR": "/run/user/7"}, uid=7) == Path("/run/user/7/aliquot")
    assert root_of({}, uid=0) == Path("/run/aliquot-shares")
    with pytest.raises(InvalidInput, match="XDG_RUNTIME_DIR"):
        root_of({}, uid=4_000_000)


def test_what_a_crash_left_half_made_is_cleared_away(tmp_path: Path) -> None:
    here = Workstation(root=tmp_path / "aliquot")
    with here.alone():
        (tmp_path / "aliquot/.half").mkdir()
        (tmp_path / "aliquot/empty").mkdir()
        assert here.living() == []
    assert [path.name for path in (tmp_path / "aliquot").iterdir()] == ["lock"]
