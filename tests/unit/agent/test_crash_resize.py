# SPDX-License-Identifier: Apache-2.0
"""The agent is killed by the real SIGKILL at each write of a share's growth and of its way back."""

import contextlib
import json
import os
import signal
from pathlib import Path

from aliquot_agent.checkpoint import Growth
from aliquot_agent.claims import ClaimRef
from aliquot_agent.resize import withdrawn
from tests.unit.agent.kit import GIB, FakeGpus, FakeServer, Node, make_claim, make_gpu, result
from tests.unit.agent.test_grower import Cluster


def node_at(root: Path) -> tuple[Node, ClaimRef]:
    """The same node and claim in this process and in the one that dies."""
    saved = root / "claim.json"
    gpus = FakeGpus(gpus=[make_gpu(0)])
    if not saved.exists():
        saved.write_text(json.dumps(make_claim(result(gpus.gpus[0], memory="8Gi"), name="a")))
    node = Node(root=root, gpus=gpus, server=FakeServer())
    return node, node.server.add(json.loads(saved.read_text()))


def victim(root: Path, kill_at: int) -> None:
    """What the process that dies runs: up, up again, partly down, a claim in the way, up, down."""
    done = 0

    def step(_: str) -> None:
        nonlocal done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    node, ref = node_at(root)
    node.claims().prepare(ref)
    cluster = Cluster(node, step=step)
    for limit in ("12Gi", "20Gi", "10Gi"):
        cluster.limits["a"] = limit
        cluster.steps(15)
    cluster.claims.change_share(ref.uid, cluster.share(ref).share, withdrawn)
    for limit in ("16Gi", "4Gi"):
        cluster.limits["a"] = limit
        cluster.steps(15)


def run_until(root: Path, kill_at: int) -> bool:
    """Whether the victim got to its end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            victim(root, kill_at)
            status = 0
        os._exit(status)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return code == 0


def test_a_kill_at_any_write_leaves_growth_accounted_for(tmp_path: Path) -> None:
    kill_at = 0
    while True:
        kill_at += 1
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        survived = run_until(folder, kill_at)
        node, ref = node_at(folder)
        cluster = Cluster(node)
        share = cluster.share(ref)
        assert share.limit <= share.taken_bytes <= 20 * GIB
        assert (share.grant_bytes > 0) is (share.growth is not Growth.NONE)
        cluster.publish()  # the first thing a new agent does
        assert cluster.published_bytes == 24 * GIB - share.grant_bytes
        cluster.limits["a"] = "20Gi"
        cluster.steps(20)
        assert cluster.share(ref).limit == 20 * GIB
        cluster.claims.unprepare(ref.uid)
        assert node.leftovers() == []
        if survived:
            break
    assert kill_at > 20
