# SPDX-License-Identifier: Apache-2.0
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent.configwatch import ConfigWatch
from aliquot_agent.errors import ApiError
from aliquot_agent.nodepolicy import GpuPolicy, NodePolicy
from aliquot_api.quantity import MIB
from tests.unit.agent.kit import wait_for

HEAD = "apiVersion: aliquot.dev/v1alpha1\nkind: NodeConfig\n"


class FakeApi:
    """A server with one ConfigMap, a node and a watch."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.labels: dict[str, str] = {}
        self.away = False
        self.node_is_gone = False
        self.events: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue()

    def get_node(self, name: str) -> dict[str, Any]:
        if self.away:
            raise ApiError(status=0, message="no answer")
        if self.node_is_gone:
            raise ApiError(status=404, message='nodes "node-1" not found')
        return {"metadata": {"name": name, "labels": self.labels}}

    def get_config_map(self, namespace: str, name: str) -> dict[str, Any]:
        assert (namespace, name) == ("ns", "aliquot-node-config")
        if self.away:
            raise ApiError(status=0, message="no answer")
        if self.text is None:
            raise ApiError(status=404, message="not found")
        return {"data": {"config.yaml": self.text}}

    def config_map_watch(self, namespace: str, name: str) -> "FakeApi":
        return self

    def follow(self, resource_version: str, *, timeout_s: int) -> Iterator[tuple[str, dict[str, Any]]]:
        while (event := self.events.get()) is not None:
            yield event

    def stop(self) -> None:
        self.events.put(None)

    def change(self, body: str | None) -> None:
        """What `kubectl apply`, or delete, does."""
        self.text = body
        kind = "DELETED" if body is None else "MODIFIED"
        self.events.put((kind, {"data": {"config.yaml": body}}))


class Scene:
    """A node's watch on its configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.api = FakeApi()
        self.changed = threading.Semaphore(0)
        self.complaints: list[str] = []
        self.watch = self.agent()

    def agent(self) -> ConfigWatch:
        return ConfigWatch(
            api=self.api,  # type: ignore[arg-type] # its watch has the same two methods
            node="node-1",
            namespace="ns",
            base=NodePolicy(defaults=GpuPolicy(shares=7)),
            kept=self.path / "kept.json",
            changed=self.changed.release,
            complain=lambda reason, message: self.complaints.append(message),
        )

    @property
    def shares(self) -> int:
        return self.watch.policy().defaults.shares


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.watch.stop()


def test_without_a_config_map_the_agents_own_settings_count(scene: Scene) -> None:
    scene.watch.read()
    assert scene.shares == 7
    assert not (scene.path / "kept.json").exists()


def test_a_change_counts_at_once_and_its_end_as_well(scene: Scene) -> None:
    scene.watch.start()
    scene.api.change(HEAD + "defaults: {shares: 3, reserve: 1Mi}")
    assert scene.changed.acquire(timeout=10)
    assert scene.watch.policy().defaults == GpuPolicy(shares=3, reserve_bytes=MIB)
    scene.api.change(None)
    assert scene.changed.acquire(timeout=10)
    assert scene.shares == 7


def test_one_that_is_not_understood_changes_nothing_and_is_said_once(scene: Scene) -> None:
    scene.watch.start()
    scene.api.change(HEAD + "defaults: {shares: 3}")
    assert scene.changed.acquire(timeout=10)
    for _ in range(3):
        scene.api.change(HEAD + "defaults: {shares: -3}")
    scene.api.change(HEAD + "defaults: {share: 3}")
    wait_for(lambda: len(scene.complaints) == 2)
    assert scene.shares == 3
    assert "defaults.shares: invalid value -3" in scene.complaints[0]
    assert "defaults.share" in scene.watch.problem
    scene.api.change(HEAD + "defaults: {shares: 4}")
    assert scene.changed.acquire(timeout=10)
    assert (scene.shares, scene.watch.problem) == (4, "")


def test_a_config_map_without_the_key_is_not_understood(scene: Scene) -> None:
    scene.api.events.put(("ADDED", {"data": {"config.yml": ""}}))
    scene.watch.start()
    wait_for(lambda: bool(scene.watch.problem))
    assert "want config.yaml" in scene.watch.problem


def test_labels_of_the_node_choose(scene: Scene) -> None:
    scene.api.labels = {"pool": "big"}
    scene.api.text = HEAD + "nodes: [{labels: {pool: big}, shares: 2}]"
    scene.watch.read()
    assert scene.shares == 2


def test_a_restarted_agent_goes_on_with_what_was_understood_while_the_server_is_away(scene: Scene) -> None:
    scene.api.labels = {"pool": "big"}
    scene.api.text = HEAD + "nodes: [{labels: {pool: big}, shares: 2}]"
    scene.watch.read()
    scene.api.away = True
    again = scene.agent()
    again.load()
    again.read()
    assert again.policy().defaults.shares == 2


def test_a_restarted_agent_meets_a_bad_document_with_the_last_good_one(scene: Scene) -> None:
    scene.api.text = HEAD + "defaults: {shares: 2}"
    scene.watch.read()
    scene.api.text = "nonsense"
    again = scene.agent()
    again.load()
    again.read()
    assert again.policy().defaults.shares == 2
    assert again.problem


@pytest.mark.parametrize("text", ["", "[]", '{"labels": 1, "text": ""}', '{"labels": {}, "text": "x"}'])
def test_a_spoilt_file_is_forgotten(scene: Scene, text: str) -> None:
    (scene.path / "kept.json").write_text(text)
    scene.watch.load()
    assert scene.shares == 7


def test_a_node_that_is_gone_for_a_moment_changes_nothing(scene: Scene) -> None:
    scene.api.labels = {"pool": "big"}
    scene.api.text = HEAD + "defaults: {shares: 3}\nnodes: [{labels: {pool: big}, shares: 5}]"
    scene.watch.read()
    before = scene.watch.policy()
    scene.api.node_is_gone = True
    scene.watch.read()
    assert scene.watch.policy() == before

    after = scene.agent()  # a restart
    after.load()
    after.start()  # reads, then watches
    scene.api.change(scene.api.text.replace("shares: 3", "shares: 4"))
    wait_for(lambda: after.policy().defaults.shares != 3)
    assert after.policy().defaults.shares == 5
    after.stop()
