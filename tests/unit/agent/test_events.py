# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from aliquot_agent import events
from aliquot_agent.errors import ApiError
from aliquot_agent.events import Events


class FakeApi:
    """An API server's Events."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.failures: list[ApiError] = []

    def create_event(self, event: dict[str, Any]) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        assert event["metadata"]["name"] not in self.events
        self.events[event["metadata"]["name"]] = event
        return event

    def patch_event(self, namespace: str, name: str, change: dict[str, Any]) -> None:
        if name not in self.events:
            raise ApiError(status=404, message="not found")
        self.events[name] |= change


class Scene:
    """A writer of Events whose thread stands still."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.now_s = 0.0
        self.events = Events(api=self.api, node="node-1", monotonic_s=lambda: self.now_s)

    def say(self, message: str = "m", *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.events.pod(namespace="ns", name="p", uid="u", reason="Why", message=message)
        self.events.write_waiting()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(events, "_PAUSE_S", 0.0)
    return Scene()


def test_an_event_is_about_its_object(scene: Scene) -> None:
    scene.say("too much")
    scene.events.node("GpuLost", "gone", warning=False)
    scene.events.claim(namespace="ns", name="c", uid="cu", reason="Why", message="x")
    scene.events.write_waiting()
    pod, node, claim = scene.api.events.values()
    assert pod["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "namespace": "ns",
        "uid": "u",
    }
    assert (pod["metadata"]["namespace"], pod["type"], pod["message"]) == ("ns", "Warning", "too much")
    assert node["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert (node["metadata"]["namespace"], node["type"]) == ("default", "Normal")
    assert claim["involvedObject"]["apiVersion"] == "resource.k8s.io/v1"


def test_the_same_words_are_counted_and_not_too_often(scene: Scene) -> None:
    scene.say()
    scene.say(after_s=1)
    [event] = scene.api.events.values()
    assert event["count"] == 1
    scene.say(after_s=60)
    assert event["count"] == 2
    scene.say("other words")
    assert len(scene.api.events) == 2


def test_an_event_that_the_server_forgot_is_made_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.say()
    scene.api.events.clear()
    scene.say(after_s=60)
    assert [event["count"] for event in scene.api.events.values()] == [1]


def test_a_failure_is_nobodys(scene: Scene) -> None:
    scene.api.failures = [ApiError(status=500, message="x")]
    scene.say()
    scene.say("more")
    assert [event["message"] for event in scene.api.events.values()] == ["more"]


def test_a_flood_is_dropped_and_long_words_are_cut(scene: Scene) -> None:
    for number in range(1000):
        scene.events.node("Flood", f"{number} " + "x" * 2000)
    scene.events.write_waiting()
    assert 0 < len(scene.api.events) < 1000
    assert all(len(event["message"]) <= 1000 for event in scene.api.events.values())
