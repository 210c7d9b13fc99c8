# SPDX-License-Identifier: Apache-2.0
"""The agent is killed between any two writes, by the real SIGKILL, then started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from aliquot_agent import cdi, sharedir
from aliquot_agent.claims import ClaimRef
from tests.unit.agent.kit import FakeGpus, FakeServer, Node, make_claim, make_gpu, result

WRITES = 14
"""Of Prepare: checkpoint 2, the claim's directory 2 with two shares of 3 and two metadata files, CDI 2."""
ROOT = Path(__file__).resolve().parents[3]


def node_at(root: Path) -> tuple[Node, ClaimRef]:
    """The same node and claim in this process and in the one that dies."""
    saved = root / "claim.json"
    gpus = FakeGpus(gpus=[make_gpu(0), make_gpu(1)])
    if not saved.exists():
        shares = (result(gpus.gpus[0], cores="20"), result(gpus.gpus[1], request="side"))
        saved.write_text(json.dumps(make_claim(*shares)))
    node = Node(root=root, gpus=gpus, server=FakeServer())
    return node, node.server.add(json.loads(saved.read_text()))


def run_until(root: Path, verb: str, kill_at: int) -> bool:
    """Runs `verb` in a process that kills itself at its `kill_at`-th write; whether it got to its end."""
    code = f"from tests.unit.agent.test_crash import victim; victim({str(root)!r}, {verb!r}, {kill_at})"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode in (0, -signal.SIGKILL)
    return ended.returncode == 0


def victim(root: str, verb: str, kill_at: int) -> None:
    """What the process that dies runs."""
    node, ref = node_at(Path(root))
    done = 0

    def step(_: str) -> None:
        nonlocal done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if verb == "reboot":
        node.boot_id = "boot-2"
    claims = node.claims(step=step)
    if verb == "prepare from spares":
        claims.make_ready()
    if verb == "unprepare":
        claims.unprepare(ref.uid)
    else:
        claims.prepare(ref)


def each_kill(root: Path, verb: str, check: Callable[[Path], None], prepare_first: bool) -> int:
    """Kills `verb` at each of its writes in turn, on a fresh node each time; how many there were."""
    kill_at = 0
    while True:
        kill_at += 1
        folder = root / str(kill_at)
        folder.mkdir()
        if prepare_first:
            node, ref = node_at(folder)
            node.claims().prepare(ref)
        survived = run_until(folder, verb, kill_at)
        check(folder)
        if survived:
            return kill_at - 1


def check_prepared(folder: Path, *, boot_id: str = "boot-1") -> None:
    """A restarted agent gives the right answer, complete files, and can take it all away."""
    node, ref = node_at(folder)
    node.boot_id = boot_id
    claims = node.claims()
    devices = claims.prepare(ref)
    assert devices == claims.prepare(ref)
    expected = node.server.get_claim(ref.namespace, ref.name)["status"]["allocation"]["devices"]["results"]
    assert [device.share for device in devices] == [entry["shareID"] for entry in expected]
    for device in devices:
        with sharedir.ShareFiles(path=node.claims_dir / ref.uid / device.share) as opened:
            assert opened.quota().memory_limit_bytes == 8000 * 1024**2
    assert len(json.loads(cdi.spec_path(node.cdi_dir, ref.uid).read_text())["devices"]) == 2
    claims.unprepare(ref.uid)
    assert node.leftovers() == []


def check_reconciled(folder: Path) -> None:
    """A restarted agent whose claim is gone clears up by itself."""
    node, _ = node_at(folder)
    node.server.claims.clear()
    claims = node.claims()
    node.reconcile(claims)
    assert node.leftovers() == []


def check_unprepared(folder: Path) -> None:
    """A restarted agent takes the second call and leaves nothing."""
    node, ref = node_at(folder)
    claims = node.claims()
    claims.unprepare(ref.uid)
    assert node.leftovers() == []


def test_prepare_killed_at_any_write_gives_the_same_answer(tmp_path: Path) -> None:
    writes = each_kill(tmp_path, "prepare", check_prepared, prepare_first=False)
    assert writes == WRITES


def test_prepare_over_a_file_that_waited_killed_at_any_write_gives_the_same_answer(tmp_path: Path) -> None:
    writes = each_kill(tmp_path, "prepare from spares", check_prepared, prepare_first=False)
    assert writes == WRITES + 1


def test_prepare_killed_at_any_write_is_cleared_when_the_claim_is_gone(tmp_path: Path) -> None:
    assert each_kill(tmp_path, "prepare", check_reconciled, prepare_first=False) == WRITES


def test_prepare_after_a_reboot_killed_at_any_write_gives_the_same_answer(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        check_prepared(folder, boot_id="boot-2")

    # As above and removing 2, CDI as it was.
    assert each_kill(tmp_path, "reboot", check, prepare_first=True) == WRITES


def test_unprepare_killed_at_any_write_leaves_nothing_after_the_second_call(tmp_path: Path) -> None:
    assert each_kill(tmp_path, "unprepare", check_unprepared, prepare_first=True) == 4


def test_unprepare_killed_at_any_write_is_finished_by_the_reconciler(tmp_path: Path) -> None:
    assert each_kill(tmp_path, "unprepare", check_reconciled, prepare_first=True) == 4
