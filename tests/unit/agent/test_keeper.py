# SPDX-License-Identifier: Apache-2.0
"""The keeper of sharing: GPUs follow the checkpoints, across crashes of either side."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aliquot_agent.checkpoint import Checkpoints, PreparedClaim, PreparedShare
from aliquot_agent.errors import Refused, ToolFailed
from aliquot_agent.keeper import Keeper
from aliquot_agent.kept import Kept, Register, Ways
from aliquot_agent.smi import DriverTool
from aliquot_api import modes
from tests.unit.agent.kit import wait_for

GPU, OTHER = "GPU-a", "GPU-b"

TOOL = """#!/bin/sh
if [ -e "$0.broken" ]; then echo "Unable to determine the device handle" >&2; exit 3; fi
echo "$@" >>"$0.calls"
"""


@dataclass
class Daemon:
    """A daemon that can be lost."""

    running: bool = False
    lost: bool = False
    starts: int = 0
    removed: bool = False
    rebooted: bool = False

    def start(self) -> None:
        self.running, self.lost, self.starts = True, False, self.starts + 1

    def began(self) -> bool:
        return self.starts > 0 and not self.removed and not self.rebooted

    def lives(self) -> bool:
        return self.running and not self.lost

    def stop(self) -> None:
        self.running = False

    def remove(self) -> None:
        self.removed = True


@dataclass
class Scene:
    """A node with a keeper and the checkpoints that it reads."""

    root: Path
    now_s: float = 0.0
    daemons: dict[str, Daemon] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tool.write_text(TOOL)
        self.tool.chmod(0o755)
        self.checkpoints = Checkpoints(directory=self.root / "claims")
        self.checkpoints.start()
        self.ways = Ways(directory=self.root / "sharing")
        self.keeper = self.new_keeper()

    @property
    def tool(self) -> Path:
        return self.root / "smi"

    def new_keeper(self) -> Keeper:
        return Keeper(
            register=Register(directory=self.root / "sharing"),
            checkpoints=self.checkpoints,
            tool=DriverTool(path=str(self.tool)),
            daemon_of=lambda gpu: self.daemons.setdefault(gpu, Daemon()),
            monotonic_s=lambda: self.now_s,
        )

    def calls(self) -> list[str]:
        """What the driver's tool was told since the last look."""
        log = self.tool.with_name("smi.calls")
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def broken(self, broken: bool) -> None:
        mark = self.tool.with_name("smi.broken")
        mark.touch() if broken else mark.unlink()

    def prepare(self, uid: str, sharing: str, *, gpu: str = GPU, whole: bool = False) -> PreparedShare:
        prepared = share(sharing, gpu=gpu, whole=whole)
        self.checkpoints.save(PreparedClaim(uid, "n", "c", "boot", "now", "", (prepared,)))
        return prepared


def share(sharing: str, *, gpu: str = GPU, whole: bool = False) -> PreparedShare:
    return PreparedShare("s", "main", "node", gpu.lower(), gpu, whole, 1 << 30, 30, 1, 0, sharing=sharing)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_gpu_has_its_time_slice_from_the_first_share_to_the_last(scene: Scene) -> None:
    scene.prepare("a", "timeslice=short")
    scene.prepare("b", "timeslice=short")
    scene.prepare("c", "shim", gpu=OTHER)
    scene.prepare("d", "shim", gpu="GPU-whole", whole=True)
    scene.keeper.step()
    scene.keeper.step()
    assert scene.calls() == [f"compute-policy -i {GPU} --set-timeslice 1"]
    scene.checkpoints.remove("a")
    scene.keeper.step()
    assert scene.calls() == []
    scene.checkpoints.remove("b")
    scene.keeper.step()
    scene.keeper.step()
    assert scene.calls() == [f"compute-policy -i {GPU} --set-timeslice 0"]
    assert scene.ways.kept(GPU) is None


def test_prepare_goes_on_when_the_gpu_is_ready_and_not_before(scene: Scene) -> None:
    wanted = scene.prepare("a", "timeslice=long")
    with pytest.raises(Refused, match="container `sharing` of the agent's pod does not run"):
        scene.ways.await_all([wanted], 0.0)
    scene.keeper.step()
    scene.ways.await_all([wanted], 0.0)
    with pytest.raises(Refused, match="not ready for sharing mps: it is still set up for timeslice=long"):
        scene.ways.await_all([share("mps")], 0.0)
    with pytest.raises(Refused, match="not ready for sharing shim: it is still set up for timeslice=long"):
        scene.ways.await_all([share("shim", whole=True)], 0.0)
    scene.ways.await_all([share("shim", gpu=OTHER)], 0.0)


def test_what_the_tool_says_reaches_the_pod_and_is_tried_again(scene: Scene) -> None:
    scene.broken(True)
    wanted = scene.prepare("a", "timeslice=short")
    scene.keeper.step()
    with pytest.raises(Refused, match="exit status 3: Unable to determine the device handle"):
        scene.ways.await_all([wanted], 0.0)
    scene.broken(False)
    scene.keeper.step()
    assert scene.calls() == []
    scene.now_s += 2
    scene.keeper.step()
    scene.ways.await_all([wanted], 0.0)


def test_a_tool_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"no program .*nowhere"):
        DriverTool(path=str(tmp_path / "nowhere")).set_exclusive(GPU, on=True)


def test_what_a_killed_keeper_left_is_undone_by_the_next(scene: Scene) -> None:
    scene.prepare("a", "timeslice=short")
    scene.prepare("b", "mps", gpu=OTHER)
    scene.keeper.step()
    scene.checkpoints.remove("a")
    scene.checkpoints.remove("b")
    scene.keeper._register.release()  # as the kernel does it for who is killed
    scene.calls()
    assert (kept := scene.ways.kept(GPU)) is not None
    assert "does not run" in kept.problem
    scene.new_keeper().step()
    assert sorted(scene.calls()) == [f"-i {OTHER} -c DEFAULT", f"compute-policy -i {GPU} --set-timeslice 0"]
    assert not scene.daemons[OTHER].running
    assert scene.ways.kept(GPU) is scene.ways.kept(OTHER) is None


def test_what_is_still_wanted_is_made_again_by_the_next_keeper(scene: Scene) -> None:
    wanted = scene.prepare("a", "mps")
    scene.keeper.step()
    second = scene.new_keeper()
    second.step()  # it waits while the first one lives
    assert scene.daemons[GPU].starts == 1
    scene.keeper.close()
    assert not scene.daemons[GPU].running
    assert not scene.daemons[GPU].removed, "running containers have its directory mounted"
    second.step()
    scene.ways.await_all([wanted], 0.0)
    assert scene.daemons[GPU].starts == 2
    assert scene.ways.kept(GPU) == Kept(modes.MPS), "nothing was lost"


def test_a_keeper_that_is_asked_to_end_goes_on_until_no_program_needs_a_daemon(scene: Scene) -> None:
    scene.prepare("a", "mps")
    scene.prepare("b", "timeslice=short", gpu=OTHER)
    scene.keeper.step()
    scene.keeper.end()
    running = threading.Thread(target=scene.keeper.run)
    running.start()
    scene.prepare("c", "mps", gpu="GPU-c")
    wait_for(lambda: scene.ways.kept("GPU-c") == Kept(modes.MPS))
    scene.checkpoints.remove("a")
    wait_for(lambda: scene.daemons[GPU].removed)
    assert running.is_alive()
    scene.checkpoints.remove("c")
    running.join(timeout=20)
    assert not running.is_alive()
    assert scene.ways.kept(OTHER) is None, "a slice is set again by the next keeper"


def test_a_keeper_that_is_asked_to_end_does_not_stay_for_a_daemon_that_does_not_start(scene: Scene) -> None:
    scene.broken(True)
    scene.prepare("a", "mps")
    scene.keeper.step()
    scene.keeper.end()
    running = threading.Thread(target=scene.keeper.run)
    running.start()
    running.join(timeout=20)
    assert not running.is_alive()


def test_mps_has_one_daemon_per_gpu_from_the_first_share_to_the_last(scene: Scene) -> None:
    scene.prepare("a", "mps")
    scene.prepare("b", "mps")
    scene.keeper.step()
    assert scene.calls() == [f"-i {GPU} -c EXCLUSIVE_PROCESS"]
    scene.checkpoints.remove("a")
    scene.keeper.step()
    assert scene.daemons[GPU] == Daemon(running=True, starts=1)
    scene.checkpoints.remove("b")
    scene.keeper.step()
    assert scene.calls() == [f"-i {GPU} -c DEFAULT"]
    assert scene.daemons[GPU] == Daemon(running=False, starts=1, removed=True)


def test_a_lost_daemon_is_replaced(scene: Scene) -> None:
    wanted = scene.prepare("a", "mps")
    scene.keeper.step()
    scene.daemons[GPU].lost = True
    scene.keeper.step()
    scene.ways.await_all([wanted], 0.0)
    assert scene.daemons[GPU].starts == 2
    assert scene.calls() == [f"-i {GPU} -c EXCLUSIVE_PROCESS"] * 2, "never open to others in between"
    assert scene.ways.kept(GPU) == Kept(modes.MPS, lost=1)
    scene.daemons[GPU].lost = True
    scene.broken(True)
    scene.keeper.step()
    kept = scene.ways.kept(GPU)
    assert kept is not None
    assert (kept.lost, bool(kept.problem)) == (2, True)
    scene.checkpoints.remove("a")
    scene.broken(False)
    scene.now_s += 2
    scene.keeper.step()
    scene.prepare("b", "mps")
    scene.keeper.step()
    assert scene.ways.kept(GPU) == Kept(modes.MPS), "counted anew for the next shares"


@pytest.mark.parametrize("rebooted", [False, True])
def test_the_daemon_of_a_killed_keeper_was_lost_unless_the_node_was(scene: Scene, rebooted: bool) -> None:
    scene.prepare("a", "mps")
    scene.keeper.step()
    scene.keeper._register.release()  # as the kernel does it for who is killed
    scene.daemons[GPU].rebooted = rebooted
    scene.new_keeper().step()
    assert scene.ways.kept(GPU) == Kept(modes.MPS, lost=int(not rebooted))


def test_a_file_that_cannot_be_read_keeps_tenants_away_until_the_gpu_is_plain(scene: Scene) -> None:
    (scene.root / "sharing").mkdir()
    (scene.root / "sharing" / f"{GPU}.json").write_text("{")
    with pytest.raises(Refused, match="not ready for sharing shim"):
        scene.ways.await_all([share("shim")], 0.0)
    scene.keeper.step()
    scene.ways.await_all([share("shim")], 0.0)
