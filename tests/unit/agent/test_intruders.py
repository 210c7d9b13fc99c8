# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from aliquot_agent.errors import ApiError
from aliquot_agent.intruders import Intruders
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.pods import Pods
from aliquot_api.config import OverQuota
from tests.unit.agent.shares import make_prepared, make_share
from tests.unit.agent.test_pods import make_pod


class Scene:
    """A node with one prepared claim and the pods that a test puts there."""

    def __init__(self, *pods: dict[str, Any], whole: bool = False) -> None:
        self.policy = NodePolicy()
        self.evicted: list[str] = []
        self.said: list[str] = []
        self.failure: ApiError | None = None
        book = Pods(api=self, node="node-1")
        book.replace(pods)
        claim = make_prepared(make_share(whole=whole))
        self.intruders = Intruders(
            api=self, pods=book, claims=lambda: (claim,), policy=lambda: self.policy, events=self
        )

    def evict(self, namespace: str, name: str, uid: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.evicted.append(uid)

    def pod(
        self, *, namespace: str, name: str, uid: str, reason: str, message: str, warning: bool = True
    ) -> None:
        self.said.append(f"{uid} {reason}: {message}")

    def pod_watch(self, node: str) -> Any:
        """Nobody watches here."""

    def list_pods(self, node: str) -> Any:
        raise AssertionError

    def get_pod(self, namespace: str, name: str) -> Any:
        raise AssertionError

    get_claim = get_pod


def privileged_pod(kind: str = "containers", **changes: Any) -> dict[str, Any]:
    pod = make_pod("debug", **changes)
    pod["spec"].setdefault(kind, []).append({"name": "root", "securityContext": {"privileged": True}})
    return pod


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_a_pod_that_got_a_privileged_container_beside_a_share_is_evicted(kind: str) -> None:
    scene = Scene(make_pod("train"), privileged_pod(kind))
    scene.intruders.look()
    assert scene.evicted == ["uid-debug"]
    [said] = scene.said
    assert said.startswith("uid-debug GPUSharePrivileged: the limit of the pod's share cannot be held")
    assert f"spec.{kind}[" in said
    assert said.endswith("the pod is evicted")


def test_where_shares_are_only_warned_about_it_is_said() -> None:
    scene = Scene(privileged_pod())
    scene.policy = NodePolicy(policy=OverQuota.WARN)
    scene.intruders.look()
    assert scene.evicted == []
    assert scene.said[0].endswith("nothing is done (overQuota: warn)")


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(Scene(privileged_pod(), whole=True), id="a whole GPU"),
        pytest.param(
            Scene(
                privileged_pod(
                    status={"resourceClaimStatuses": [{"name": "aliquot", "resourceClaimName": "b"}]}
                )
            ),
            id="another claim",
        ),
        pytest.param(Scene(make_pod("train")), id="not privileged"),
    ],
)
def test_others_are_left_alone(scene: Scene) -> None:
    scene.intruders.look()
    assert (scene.evicted, scene.said) == ([], [])


def test_what_keeps_a_pod_from_being_evicted_is_said() -> None:
    scene = Scene(privileged_pod())
    scene.failure = ApiError(status=429, message="a budget forbids it")
    scene.intruders.look()
    assert "a budget forbids it" in scene.said[-1]
