# SPDX-License-Identifier: Apache-2.0
import copy
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aliquot_agent import health, slices
from aliquot_agent.devices import Device, Taint
from aliquot_agent.errors import ApiError
from aliquot_agent.nvml import Gpu
from aliquot_agent.publisher import READINESS, Publisher
from aliquot_agent.readiness import Readiness
from tests.unit.agent.kit import NODE, build_device, make_gpu

Object = dict[str, Any]

GATED = ("allowMultipleAllocations", "requestPolicy")


class FakeServer:
    """An API server with slices, a watch, and a feature gate."""

    def __init__(self) -> None:
        self.slices: dict[str, Object] = {}
        self.node_uid = "node-uid-1"
        self.minor = 37
        self.gate = True
        self.policy = False
        self.keeps_taints = True
        self.writes: list[str] = []
        self.written_at_s: list[float] = []
        self.failures: list[ApiError] = []
        self.wipes_at_once = False
        self._version = 0
        self._lock = threading.RLock()
        self.events: queue.Queue[tuple[str, Object] | ApiError | None] = queue.Queue()

    def server_minor(self) -> int:
        return self.minor

    def get_node(self, name: str) -> Object:
        assert name == NODE
        return {"metadata": {"name": name, "uid": self.node_uid}}

    def list_slices(self, node: str) -> tuple[list[Object], str]:
        with self._lock:
            return copy.deepcopy(list(self.slices.values())), str(self._version)

    def create_slice(self, body: Object, *, dry_run: bool = False) -> Object:
        with self._lock:
            if self.failures:
                raise self.failures.pop(0)
            stored = self._stored(body)
            if dry_run:
                return stored
            self._version += 1
            name = f"{body['metadata']['generateName']}{self._version}"
            uid = f"uid-{self._version}"
            stored["metadata"] |= {"name": name, "uid": uid, "resourceVersion": str(self._version)}
            answer = self._put("create", "ADDED", stored)
        if self.wipes_at_once:
            self.wipes_at_once = False
            self.wipe(name)
            self.events.put(("DELETED", {"metadata": {"name": "other", "resourceVersion": "0"}}))
            wait_for(self.events.empty)  # what was before it has been taken
        return answer

    def replace_slice(self, body: Object) -> Object:
        with self._lock:
            current = self.slices[body["metadata"]["name"]]
            if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
                raise ApiError(status=409, message="conflict")
            self._version += 1
            stored = self._stored(body)
            stored["metadata"]["resourceVersion"] = str(self._version)
            return self._put("replace", "MODIFIED", stored)

    def delete_slice(self, slice_: Object) -> None:
        with self._lock:
            self.writes.append("delete")
            self.wipe(slice_["metadata"]["name"])

    def wipe(self, name: str) -> None:
        """Deletes a slice, as kubelet does."""
        with self._lock:
            gone = self.slices.pop(name)
            self._version += 1
            gone["metadata"]["resourceVersion"] = str(self._version)
            self.events.put(("DELETED", copy.deepcopy(gone)))

    def meddle(self) -> None:
        """What another writer does."""
        with self._lock:
            [stored] = self.slices.values()
            self._version += 1
            changed = copy.deepcopy(stored)
            changed["metadata"]["resourceVersion"] = str(self._version)
            changed["spec"]["devices"] = changed["spec"]["devices"][:1]
            self.slices[changed["metadata"]["name"]] = changed
            self.events.put(("MODIFIED", copy.deepcopy(changed)))

    def slice_watch(self, node: str) -> "FakeEvents":
        return FakeEvents(self)

    def _stored(self, body: Object) -> Object:
        stored: Object = copy.deepcopy(body)
        if self.policy:
            stored["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "rewritten"}
        for device in stored["spec"]["devices"] if not self.keeps_taints else []:
            device.pop("taints", None)
        for device in stored["spec"]["devices"] if not self.gate else []:
            device.pop("allowMultipleAllocations")
            for capacity in device["capacity"].values():
                capacity.pop("requestPolicy")
        return stored

    def _put(self, verb: str, event: str, stored: Object) -> Object:
        self.writes.append(verb)
        self.written_at_s.append(time.monotonic())
        self.slices[stored["metadata"]["name"]] = stored
        self.events.put((event, copy.deepcopy(stored)))
        return copy.deepcopy(stored)


class FakeEvents:
    """The server's watch."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._server.events.put(None)

    def follow(self, resource_version: str, *, timeout_s: int) -> Iterator[tuple[str, Object]]:
        while not self._stopped and (event := self._server.events.get()) is not None:
            if isinstance(event, ApiError):
                raise event
            yield event


class Scene:
    """A publisher of two GPUs at work."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.readiness = Readiness()
        self.gpus = [make_gpu(0), make_gpu(1)]
        self.sick: set[str] = set()
        self.publisher = Publisher(
            api=server,  # type: ignore[arg-type] # its watch has the same two methods
            node=NODE,
            devices=lambda: [self.device(gpu) for gpu in self.gpus],
            readiness=self.readiness,
        )

    def device(self, gpu: Gpu) -> Device:
        device = build_device(gpu)
        if gpu.uuid in self.sick:
            taint: Taint = {
                "key": health.TAINT_KEY,
                "value": "xid-79",
                "effect": "NoSchedule",
                "timeAdded": "2026-01-02T03:04:05Z",
            }
            device["taints"] = [taint]
        return device

    def published(self) -> list[int]:
        return [len(slice_["spec"]["devices"]) for slice_ in list(self.server.slices.values())]


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene(FakeServer())
    yield scene
    scene.publisher.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if condition():
            return
        deadline.wait(0.01)
    raise AssertionError("condition not met within 10 s")


def test_all_devices_stand_in_one_slice_of_the_node(scene: Scene) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    (slice_,) = scene.server.slices.values()
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == "node-uid-1"
    assert slice_["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    wait_for(lambda: scene.readiness.reasons() == {})


def test_nothing_is_written_while_nothing_differs(scene: Scene) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    (slice_,) = scene.server.slices.values()
    memory = slice_["spec"]["devices"][0]["capacity"]["memory"]
    memory["value"] = memory["requestPolicy"]["default"] = "24Gi"  # as the server may spell it
    for _ in range(5):
        scene.publisher.publish()
    assert scene.server.writes == ["create"]


def test_a_wiped_slice_is_made_anew(scene: Scene) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    scene.server.wipe(next(iter(scene.server.slices)))
    wait_for(lambda: scene.published() == [2])


def test_a_changed_gpu_is_one_write_with_the_next_generation(scene: Scene) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    scene.gpus.pop()
    scene.publisher.poke()
    wait_for(lambda: scene.published() == [1])
    (slice_,) = scene.server.slices.values()
    assert slice_["spec"]["pool"]["generation"] == 2
    assert scene.server.writes == ["create", "replace"]


def test_a_node_made_anew_owns_the_slice(scene: Scene) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    scene.server.node_uid = "node-uid-2"
    scene.publisher.poke()
    wait_for(lambda: scene.server.writes == ["create", "replace"])
    (slice_,) = scene.server.slices.values()
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"


def test_no_gpu_is_an_empty_slice(scene: Scene) -> None:
    scene.gpus.clear()
    scene.publisher.start()
    wait_for(lambda: scene.published() == [0])
    wait_for(lambda: scene.readiness.reasons() == {})


def test_where_the_gate_is_off_nothing_shareable_is_ever_visible(scene: Scene) -> None:
    scene.server.gate = False
    scene.publisher.start()
    wait_for(lambda: scene.published() == [0])
    wait_for(lambda: "DRAConsumableCapacity" in scene.readiness.reasons().get(READINESS, ""))
    assert scene.server.writes == ["create"]


def test_devices_published_before_the_gate_went_off_are_taken_back(scene: Scene) -> None:
    old = slices.build(
        node=NODE,
        node_uid="node-uid-1",
        devices=[build_device(make_gpu(0))],
        generation=4,
    )
    scene.server.create_slice(old)
    scene.server.gate = False
    scene.publisher.start()
    wait_for(lambda: scene.published() == [0])


def test_after_each_broken_watch_the_gate_is_asked_for_anew(scene: Scene) -> None:
    """A server that comes back may be another one: downgraded, or with other gates."""
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    scene.server.gate = False
    scene.server.events.put(ApiError(status=0, message="no answer"))
    wait_for(lambda: scene.published() == [0])
    wait_for(lambda: "DRAConsumableCapacity" in scene.readiness.reasons().get(READINESS, ""))
    scene.server.gate = True
    scene.server.events.put(ApiError(status=0, message="no answer"))
    wait_for(lambda: scene.published() == [2])
    wait_for(lambda: scene.readiness.reasons() == {})


def test_an_old_server_gets_nothing_shareable(scene: Scene) -> None:
    scene.server.minor = 34
    scene.publisher.start()
    wait_for(lambda: scene.published() == [0])
    wait_for(lambda: "1.34 is too old" in scene.readiness.reasons().get(READINESS, ""))


def test_an_outage_is_said_and_survived(scene: Scene) -> None:
    scene.server.failures = [ApiError(status=503, message="etcd is away")]
    scene.publisher.start()
    wait_for(lambda: "etcd is away" in scene.readiness.reasons().get(READINESS, ""))
    wait_for(lambda: scene.published() == [2])
    wait_for(lambda: scene.readiness.reasons() == {})


def test_of_several_slices_one_stays() -> None:
    server = FakeServer()
    want = [build_device(make_gpu(0))]
    for generation in (1, 2):
        server.create_slice(
            slices.build(node=NODE, node_uid="node-uid-1", devices=want, generation=generation)
        )
    known, _ = server.list_slices(NODE)
    plan = slices.plan(known, node=NODE, node_uid="node-uid-1", devices=want)
    assert [slice_["metadata"]["name"] for slice_ in plan.delete] == [known[1]["metadata"]["name"]]
    assert plan.replace is not None
    assert plan.replace["spec"]["pool"]["generation"] == 3


def test_dropped_fields_are_found_at_any_depth() -> None:
    sent = {"a": [{"b": 1, "c": {"d": 2}}], "e": []}
    assert list(slices.dropped_fields(sent, {"a": [{"b": 1, "c": {}}]})) == ["spec.a[0].c.d"]
    assert list(slices.dropped_fields(sent, sent)) == []


def test_a_policy_that_changes_the_slice_is_not_fought_in_a_loop(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.server.policy = True
    scene.publisher.start()
    wait_for(lambda: len(scene.server.writes) == 2)
    message = "the server stores another slice than we send; does a policy change it?"
    first_s, second_s = scene.server.written_at_s
    assert second_s - first_s >= 2
    assert [each.message for each in caplog.records].count(message) == 1


def test_a_sick_gpu_is_tainted(scene: Scene) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    scene.sick = {scene.gpus[1].uuid}
    scene.publisher.poke()
    wait_for(lambda: scene.server.writes == ["create", "replace"])
    [slice_] = scene.server.slices.values()
    well, sick = slice_["spec"]["devices"]
    assert "taints" not in well
    assert sick["taints"][0]["value"] == "xid-79"
    assert slice_["spec"]["pool"]["generation"] == 2


def test_where_the_server_drops_taints_a_sick_gpu_leaves_the_slice(scene: Scene) -> None:
    scene.server.keeps_taints = False
    scene.sick = {scene.gpus[0].uuid}
    scene.publisher.start()
    wait_for(lambda: scene.published() == [1])
    [slice_] = scene.server.slices.values()
    assert slice_["spec"]["devices"][0]["name"] == scene.gpus[1].uuid.lower()
    scene.sick = set()
    scene.publisher.poke()
    wait_for(lambda: scene.published() == [2])
    assert READINESS not in scene.readiness.reasons()


def test_another_writer_is_answered_ever_more_rarely(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.publisher.start()
    wait_for(lambda: scene.published() == [2])
    for _ in range(2):
        scene.server.meddle()
        wait_for(lambda: scene.published() == [2])
    before = scene.server.written_at_s[-1]
    scene.server.meddle()
    wait_for(lambda: scene.published() == [2])
    assert scene.server.written_at_s[-1] - before > 3
    assert "somebody else keeps changing our slice" in caplog.text


def test_the_servers_note_of_a_taints_time_is_no_difference() -> None:
    scene = Scene(FakeServer())
    scene.sick = {scene.gpus[0].uuid}
    devices = [scene.device(gpu) for gpu in scene.gpus]
    stored = slices.build(node=NODE, node_uid="u", devices=copy.deepcopy(devices), generation=1)
    stored["metadata"] |= {"name": "a", "uid": "1", "resourceVersion": "1"}
    stored["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-02T03:04:06Z"
    assert slices.plan([stored], node=NODE, node_uid="u", devices=devices) == slices.Plan()


def test_a_slice_whose_end_is_seen_before_the_answer_to_its_write_is_made_anew() -> None:
    server = FakeServer()
    server.wipes_at_once = True
    scene = Scene(server)
    scene.publisher.start()
    try:
        wait_for(lambda: scene.published() == [2])
        assert server.writes == ["create", "create"]
    finally:
        scene.publisher.stop()
