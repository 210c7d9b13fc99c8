# SPDX-License-Identifier: Apache-2.0
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent.discovery import Discovery
from aliquot_agent.errors import ApiError
from aliquot_agent.hardware import Cause
from aliquot_agent.nvml import Problem
from aliquot_agent.readiness import Readiness
from tests.unit.agent.kit import make_gpu
from tests.unit.agent.test_hardware import FakeNvml, make_hardware


class Scene:
    """A node with two GPUs and neighbours that come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.one, self.two = make_gpu(0), make_gpu(1)
        self.nvml = FakeNvml(self.one, self.two)
        self.hardware = make_hardware(self.nvml, Readiness())
        self.slices: list[dict[str, Any]] = []
        self.annotations: dict[str, str] = {}
        self.away = False
        self.said: list[str] = []
        self.changes = 0
        self.discovery = Discovery(
            hardware=self.hardware,
            api=self,
            node="node-1",
            device_plugins_dir=path,
            changed=self.changed,
            complain=lambda reason, message: self.said.append(message),
        )

    def changed(self) -> None:
        self.changes += 1

    def get_node(self, name: str) -> dict[str, Any]:
        if self.away:
            raise ApiError(status=0, message="no answer")
        return {"metadata": {"annotations": self.annotations}}

    def list_node_slices(self, node: str) -> list[dict[str, Any]]:
        return self.slices

    def register(self, *ids: str) -> None:
        """What kubelet writes when a device plugin registers."""
        data = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": list(ids)}}}
        (self.path / "kubelet_internal_checkpoint").write_text(json.dumps(data))

    def owned(self) -> list[int]:
        return [each.index for each in self.hardware.left_out() if each.cause is Cause.OWNED]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_gpus_are_found_and_a_change_is_told(scene: Scene) -> None:
    scene.discovery.look()
    assert (scene.changes, scene.said) == (1, [])
    scene.discovery.look()
    assert scene.changes == 1


def test_a_gpu_of_a_device_plugin_is_left_out_said_once_and_taken_when_it_is_free(scene: Scene) -> None:
    scene.register(scene.two.uuid)
    for _ in range(3):
        scene.discovery.look()
    assert scene.owned() == [1]
    [message] = scene.said
    assert scene.two.uuid in message
    assert "nvidia.com/gpu" in message
    scene.register()
    scene.discovery.look()
    assert (scene.owned(), scene.changes) == ([], 2)


def test_a_gpu_of_another_driver_or_of_hami_is_left_out(scene: Scene) -> None:
    device = {"name": "gpu-0", "attributes": {"uuid": {"string": scene.one.uuid}}}
    scene.slices = [{"spec": {"driver": "gpu.nvidia.com", "devices": [device]}}]
    scene.annotations = {"hami.io/node-nvidia-register": scene.two.uuid}
    scene.discovery.look()
    assert scene.owned() == [0, 1]
    assert scene.hardware.published() == []


def test_while_the_server_is_away_what_was_known_counts_on(scene: Scene) -> None:
    scene.annotations = {"hami.io/node-nvidia-register": scene.two.uuid}
    scene.discovery.look()
    scene.away = True
    scene.discovery.look()
    assert scene.owned() == [1]


def test_a_checkpoint_that_cannot_be_read_hides_nothing_and_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    (scene.path / "kubelet_internal_checkpoint").write_text("{")
    for _ in range(3):
        scene.discovery.look()
    assert scene.owned() == []
    assert caplog.text.count("device plugins cannot be looked at") == 1


def test_a_broken_gpu_and_one_with_partitions_are_said(scene: Scene) -> None:
    scene.nvml.gpus = ()
    scene.nvml.problems = (Problem(0, "Unknown Error"), Problem(1, "MIG mode is on", mig=True))
    scene.discovery.look()
    assert scene.said == [
        "GPU 0 is not published: Unknown Error",
        "GPU 1 is not published: MIG mode is on",
    ]


def test_a_second_look_waits_for_the_first(scene: Scene) -> None:
    entered, go_on = threading.Event(), threading.Event()
    inside: list[int] = []

    def refresh() -> bool:
        inside.append(1)
        entered.set()
        assert go_on.wait(30)
        assert len(inside) == 1
        inside.pop()
        return False

    scene.hardware.refresh = refresh  # type: ignore[method-assign]
    threads = [threading.Thread(target=scene.discovery.look) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert inside == []
