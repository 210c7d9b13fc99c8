# SPDX-License-Identifier: Apache-2.0
"""The watch over the health of GPUs, second by second; tests/system shows it on the simulated NVML."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent.errors import NvmlError
from aliquot_agent.healthwatch import REASON_SICK, REASON_WELL, HealthWatch
from aliquot_agent.nodepolicy import HealthPolicy, NodePolicy, TaintEffect
from aliquot_agent.nvml import Gpu, Vitals, Xid
from tests.unit.agent.kit import make_gpu

CALM_S = 5.0


class FakeEvents:
    """One event set."""

    def __init__(self, nvml: "FakeNvml", uuids: frozenset[str]) -> None:
        self._of = nvml, uuids
        self.incomplete = nvml.incomplete
        self.closed = False

    def is_of(self, nvml: "FakeNvml", uuids: frozenset[str]) -> bool:
        return self._of == (nvml, uuids)

    def wait(self, timeout_ms: int) -> Xid | None:
        nvml = self._of[0]
        if nvml.broken:
            raise NvmlError("GPU is lost")
        return nvml.xids.pop(0) if nvml.xids else None

    def close(self) -> None:
        self.closed = True


class FakeNvml:
    """NVML as the watch needs it."""

    def __init__(self) -> None:
        self.found: dict[str, Vitals] = {}
        self.xids: list[Xid] = []
        self.sets: list[FakeEvents] = []
        self.incomplete = False
        self.broken = False

    def vitals(self, gpu_uuid: str) -> Vitals:
        return self.found.get(gpu_uuid, Vitals(uncorrected=0, action_needed=False))

    def xid_events(self, uuids: frozenset[str]) -> FakeEvents:
        self.sets.append(FakeEvents(self, uuids))
        return self.sets[-1]


class Scene:
    """A node with two GPUs, one agent after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gpus = [make_gpu(0), make_gpu(1)]
        self.nvml: Any = FakeNvml()
        self.now_s = 0.0
        self.boot_id = "boot-1"
        self.told: list[str] = []
        self.changes = 0
        self.policy = NodePolicy()

    def by_device(self) -> Mapping[str, Gpu]:
        return {gpu.uuid.lower(): gpu for gpu in self.gpus}

    def changed(self) -> None:
        self.changes += 1

    def agent(self) -> HealthWatch:
        """An agent that has just started; its threads stand still."""
        watch = HealthWatch(
            gpus=self,
            policy=lambda: self.policy,
            path=self.path / "health.json",
            boot_id=self.boot_id,
            calm_s=CALM_S,
            changed=self.changed,
            tell=lambda reason, message: self.told.append(reason),
            monotonic_s=lambda: self.now_s,
        )
        watch.load()
        return watch

    def looks(self, watch: HealthWatch, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            watch.listen()
            watch.look()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_xid_taints_its_gpu_and_no_other_until_there_is_evidence(scene: Scene) -> None:
    watch, sick = scene.agent(), scene.gpus[1]
    scene.looks(watch, 2)
    assert (watch.taints(), scene.told) == ({}, [])
    scene.nvml.xids = [Xid(sick.uuid, 79)]
    scene.nvml.found[sick.uuid] = Vitals(uncorrected=0, action_needed=True)
    scene.looks(watch, 1)
    assert list(watch.taints()) == [sick.uuid.lower()]
    assert watch.taints()[sick.uuid.lower()]["effect"] == "NoSchedule"
    assert (watch.mark(sick.uuid).status, watch.mark(sick.uuid).reason) == (False, "XidReported")
    assert watch.mark(scene.gpus[0].uuid).status
    assert (scene.told, scene.changes) == ([REASON_SICK], 1)
    scene.looks(watch, 20)
    assert watch.taints()
    del scene.nvml.found[sick.uuid]
    scene.looks(watch, int(CALM_S) + 1)
    assert watch.taints() == {}
    assert watch.mark(sick.uuid).status
    assert (scene.told, scene.changes) == ([REASON_SICK, REASON_WELL], 2)


def test_faults_of_programs_and_those_that_the_node_ignores_taint_nothing(scene: Scene) -> None:
    scene.policy = NodePolicy(health=HealthPolicy(ignored_xids=frozenset({31, 92})))
    watch = scene.agent()
    scene.nvml.xids = [Xid(scene.gpus[0].uuid, code) for code in (31, 92)]
    scene.looks(watch, 4)
    assert watch.taints() == {}


def test_the_effect_is_the_nodes_policy(scene: Scene) -> None:
    watch = scene.agent()
    scene.nvml.found[scene.gpus[0].uuid] = Vitals(lost=True)
    scene.looks(watch, 1)
    scene.policy = NodePolicy(health=HealthPolicy(effect=TaintEffect.NO_EXECUTE))
    assert [taint["effect"] for taint in watch.taints().values()] == ["NoExecute"]


def test_a_restarted_agent_remembers_an_xid_and_a_reboot_ends_it(scene: Scene) -> None:
    scene.nvml.xids = [Xid(scene.gpus[0].uuid, 79)]
    scene.nvml.found[scene.gpus[0].uuid] = Vitals(uncorrected=3)
    scene.looks(scene.agent(), 2)
    again = scene.agent()
    assert [taint["value"] for taint in again.taints().values()] == ["xid-79"]
    scene.looks(again, 60)
    assert again.taints()
    scene.boot_id = "boot-2"
    assert scene.agent().taints() == {}


def test_errors_while_no_agent_ran_count(scene: Scene) -> None:
    scene.looks(scene.agent(), 2)
    scene.nvml.found[scene.gpus[0].uuid] = Vitals(uncorrected=1)
    again = scene.agent()
    scene.looks(again, 1)
    assert [taint["value"] for taint in again.taints().values()] == ["ecc"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "boot_id": "boot-1", "gpus": {"a": 7}}'])
def test_a_spoilt_file_is_forgotten(scene: Scene, text: str) -> None:
    (scene.path / "health.json").write_text(text)
    watch = scene.agent()
    scene.looks(watch, 1)
    assert watch.taints() == {}
    assert json.loads((scene.path / "health.json").read_text())["version"] == 1


def test_nothing_is_written_while_nothing_changes(scene: Scene) -> None:
    watch = scene.agent()
    scene.looks(watch, 2)
    inode = (scene.path / "health.json").stat().st_ino
    scene.looks(watch, 10)
    assert (scene.path / "health.json").stat().st_ino == inode


def test_a_gpu_that_nvml_does_not_show_for_a_while_stays_sick(scene: Scene) -> None:
    watch = scene.agent()
    scene.nvml.xids = [Xid(scene.gpus[0].uuid, 79)]
    scene.looks(watch, 1)
    scene.gpus.pop(0)
    scene.looks(watch, 60)
    assert len(watch.taints()) == 1


def test_events_are_listened_to_again_when_gpus_or_nvml_change(scene: Scene) -> None:
    watch = scene.agent()
    scene.looks(watch, 3)
    assert len(scene.nvml.sets) == 1
    scene.gpus.append(make_gpu(2))
    scene.looks(watch, 3)
    assert [each.closed for each in scene.nvml.sets] == [True, False]
    scene.nvml = FakeNvml()
    scene.looks(watch, 1)
    assert len(scene.nvml.sets) == 1


def test_a_lost_gpu_is_listened_to_again_when_it_is_back(scene: Scene) -> None:
    watch = scene.agent()
    scene.nvml.incomplete = True
    scene.looks(watch, 8)
    assert len(scene.nvml.sets) > 1
    scene.nvml.incomplete = False
    scene.looks(watch, 8)
    before = len(scene.nvml.sets)
    scene.looks(watch, 8)
    assert len(scene.nvml.sets) == before
