# SPDX-License-Identifier: Apache-2.0
"""A lost MPS daemon is said to the pods of its GPU and the node, once, and counted."""

from dataclasses import replace

from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.kept import Kept
from aliquot_agent.mpswatch import MpsWatch
from aliquot_agent.pods import Pod
from aliquot_api import modes
from tests.unit.agent.shares import make_prepared, make_share

ONE, OTHER = "GPU-one", "GPU-other"


class Scene:
    """Two GPUs that are shared by MPS, one by two pods, and an ear."""

    def __init__(self) -> None:
        share = make_share(gpu_uuid=ONE, sharing="mps")
        claim = make_prepared(share)
        self.claims = [
            replace(claim, uid="a"),
            replace(claim, uid="b"),
            replace(claim, uid="c", shares=(replace(share, gpu_uuid=OTHER),)),
            replace(claim, uid="d", shares=(replace(share, gpu_uuid="GPU-paced", sharing="shim"),)),
        ]
        self.kept = {ONE: Kept(modes.MPS, lost=3), OTHER: Kept(modes.MPS)}
        self.said: list[str] = []
        self.watch = MpsWatch(
            claims=lambda: self.claims, kept=self.kept.get, holders=self.holders, events=self
        )

    @staticmethod
    def holders(claim: PreparedClaim) -> list[Pod]:
        return [Pod(uid=f"pod-of-{claim.uid}", namespace="n", name="p")]

    def pod(self, *, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        self.said.append(f"{uid} {reason}: {message}")

    def node(self, reason: str, message: str) -> None:
        self.said.append(f"node {reason}: {message}")

    def look(self) -> list[str]:
        """What is said at the next look."""
        self.said.clear()
        self.watch.look()
        return sorted(self.said)


def test_a_lost_daemon_is_told_to_its_pods_and_the_node_once() -> None:
    scene = Scene()
    assert scene.look() == [], "what was lost before this agent began is old"
    scene.kept[ONE] = Kept(modes.MPS, problem="being set up", lost=4)
    said = scene.look()
    assert [each.partition(" ")[0] for each in said] == ["node", "pod-of-a", "pod-of-b"]
    assert all(f" GPUShareMpsDaemonLost: the MPS daemon of GPU {ONE} was lost" in each for each in said)
    assert all(each.endswith("the new daemon: being set up") for each in said)
    assert scene.look() == []
    assert scene.watch.lost() == {ONE: 1}


def test_the_count_stays_when_the_gpu_is_plain_again_and_goes_on_with_its_next_shares() -> None:
    scene = Scene()
    scene.look()
    scene.kept[OTHER] = Kept(modes.MPS, lost=2)
    assert len(scene.look()) == 2
    claim = scene.claims.pop(2)
    del scene.kept[OTHER]
    assert scene.look() == []
    scene.claims.append(claim)
    assert scene.look() == [], "the keeper has not taken it up yet"
    scene.kept[OTHER] = Kept(modes.MPS)
    assert scene.look() == []
    scene.kept[OTHER] = Kept(modes.MPS, lost=1)
    assert len(scene.look()) == 2
    assert scene.watch.lost() == {OTHER: 3}
