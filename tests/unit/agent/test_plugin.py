# SPDX-License-Identifier: Apache-2.0
"""Both services over real unix sockets, with a client that plays kubelet."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aliquot_agent import registration
from aliquot_agent.healthservice import DeviceHealth, HealthService
from aliquot_agent.kubeletapi.dra.v1 import dra_pb2, dra_pb2_grpc
from aliquot_agent.kubeletapi.health.v1 import health_pb2 as v1
from aliquot_agent.kubeletapi.health.v1 import health_pb2_grpc as v1_grpc
from aliquot_agent.kubeletapi.health.v1alpha1 import health_pb2 as v1alpha1
from aliquot_agent.kubeletapi.health.v1alpha1 import health_pb2_grpc as v1alpha1_grpc
from aliquot_agent.kubeletapi.registration.v1 import registration_pb2, registration_pb2_grpc
from aliquot_agent.metrics import Metrics
from aliquot_agent.nodepolicy import GpuPolicy, NodePolicy
from aliquot_agent.plugin import DraPlugin
from tests.unit.agent.kit import NODE, Node, make_claim, result, wait_for

STALE = b"left by a killed agent"


class Kubelet:
    """Calls as kubelet does."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.claims = node.claims()
        self.metrics = Metrics()
        self.sick = ""
        self.health = HealthService(devices=self.devices)
        self.registered: list[tuple[bool, str]] = []
        self.paths = registration.sockets(
            plugin_dir=node.root / "p", registry_dir=node.root / "r", pod_uid=""
        )
        self.paths.registrar.parent.mkdir(exist_ok=True)
        self.paths.registrar.write_bytes(STALE)
        self.servers = registration.Servers(
            paths=self.paths,
            plugin=DraPlugin(
                claims=self.claims,
                prepared=self.metrics.prepared,
                unprepared=self.metrics.unprepared,
                failed=self.metrics.failed,
            ),
            health=self.health,
            registered=lambda accepted, error: self.registered.append((accepted, error)),
        )
        self.servers.start()
        self._channels = [
            grpc.insecure_channel(f"unix:{path}") for path in (self.paths.dra, self.paths.registrar)
        ]
        self.dra: Any = dra_pb2_grpc.DRAPluginStub(self._channels[0])  # type: ignore[no-untyped-call]
        self.registrar: Any = registration_pb2_grpc.RegistrationStub(self._channels[1])  # type: ignore[no-untyped-call]

    def devices(self) -> list[DeviceHealth]:
        return [
            DeviceHealth(NODE, name, healthy=not self.sick, message=self.sick)
            for name in self.node.gpus.by_device()
        ]

    def stop(self) -> None:
        for channel in self._channels:
            channel.close()
        self.servers.stop()

    def prepare(self, *refs: Any) -> dra_pb2.NodePrepareResourcesResponse:
        request = dra_pb2.NodePrepareResourcesRequest(claims=[message(ref) for ref in refs])
        response: dra_pb2.NodePrepareResourcesResponse = self.dra.NodePrepareResources(request, timeout=10)
        return response

    def unprepare(self, *refs: Any) -> dra_pb2.NodeUnprepareResourcesResponse:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[message(ref) for ref in refs])
        response: dra_pb2.NodeUnprepareResourcesResponse = self.dra.NodeUnprepareResources(
            request, timeout=10
        )
        return response


def message(ref: Any) -> dra_pb2.Claim:
    return dra_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    kubelet = Kubelet(node)
    yield kubelet
    kubelet.stop()


def test_kubelet_learns_where_the_driver_is(kubelet: Kubelet) -> None:
    info = kubelet.registrar.GetInfo(registration_pb2.InfoRequest(), timeout=10)
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.aliquot.dev", str(kubelet.paths.dra))
    versions = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
    assert list(info.supported_versions) == versions
    status = registration_pb2.RegistrationStatus(plugin_registered=False, error="no")
    kubelet.registrar.NotifyRegistrationStatus(status, timeout=10)
    assert kubelet.registered == [(False, "no")]


def test_threads_for_a_burst_of_calls_are_there_before_it(node: Node) -> None:
    before = set(threading.enumerate())
    kubelet = Kubelet(node)
    made = [thread for thread in threading.enumerate() if thread not in before]
    kubelet.stop()
    assert sum(thread.name.startswith("grpc") for thread in made) >= 64


def test_each_claim_of_a_call_has_its_own_answer(kubelet: Kubelet) -> None:
    gpu = kubelet.node.gpus.gpus[0]
    good = kubelet.node.server.add(make_claim(result(gpu, request="main/small"), name="good"))
    bad = kubelet.node.server.add(make_claim(result(gpu, pool="node-2"), name="bad"))

    response = kubelet.prepare(good, bad)

    (device,) = response.claims[good.uid].devices
    assert list(device.request_names) == ["main"]
    assert (device.pool_name, device.device_name) == ("node-1", gpu.uuid.lower())
    assert device.HasField("share_id")
    assert len(device.cdi_device_ids) == 2
    assert "node-2" in response.claims[bad.uid].error
    assert not response.claims[good.uid].error


def test_unprepare_answers_for_known_and_unknown_claims(kubelet: Kubelet) -> None:
    ref = kubelet.node.server.add(make_claim(result(kubelet.node.gpus.gpus[0])))
    kubelet.prepare(ref)
    response = kubelet.unprepare(ref, type(ref)(namespace="x", name="y", uid="unknown"))
    assert {uid: answer.error for uid, answer in response.claims.items()} == {ref.uid: "", "unknown": ""}
    assert kubelet.node.leftovers() == []


def test_an_error_of_the_disk_is_one_claims_error(kubelet: Kubelet) -> None:
    ref = kubelet.node.server.add(make_claim(result(kubelet.node.gpus.gpus[0])))
    kubelet.node.claims_dir.rmdir()
    kubelet.node.claims_dir.write_text("not a directory")
    assert "Not a directory" in kubelet.prepare(ref).claims[ref.uid].error
    assert 'aliquot_failures_total{call="prepare"} 1.0' in kubelet.metrics.page()[1].decode()


def test_durations_are_counted(kubelet: Kubelet) -> None:
    ref = kubelet.node.server.add(make_claim(result(kubelet.node.gpus.gpus[0])))
    kubelet.prepare(ref)
    kubelet.unprepare(ref)
    text = kubelet.metrics.page()[1].decode()
    assert "aliquot_prepare_seconds_count 1.0" in text
    assert "aliquot_unprepare_seconds_count 1.0" in text


def test_both_sockets_are_gone_after_the_end(node: Node) -> None:
    kubelet = Kubelet(node)
    assert kubelet.paths.dra.is_socket()
    assert kubelet.paths.registrar.is_socket()
    kubelet.stop()
    assert not kubelet.paths.dra.exists()
    assert not kubelet.paths.registrar.exists()


@pytest.mark.parametrize(
    ("messages", "stubs"),
    [pytest.param(v1, v1_grpc, id="v1"), pytest.param(v1alpha1, v1alpha1_grpc, id="v1alpha1")],
)
def test_kubelet_hears_of_a_sick_gpu_at_once(kubelet: Kubelet, messages: Any, stubs: Any) -> None:
    with grpc.insecure_channel(f"unix:{kubelet.paths.dra}") as channel:
        call = stubs.DRAResourceHealthStub(channel).NodeWatchResources(
            messages.NodeWatchResourcesRequest(), timeout=30
        )
        first = next(call)
        assert {device.health for device in first.devices} == {messages.HEALTHY}
        assert {device.device.pool_name for device in first.devices} == {NODE}
        kubelet.sick = "it has fallen off the bus"
        kubelet.health.poke()
        second = next(call)
        assert [(device.health, device.message) for device in second.devices] == [
            (messages.UNHEALTHY, "it has fallen off the bus")
        ] * 2
        assert second.devices[0].health_check_timeout_seconds > 10
        kubelet.stop()
        assert list(call) == []


def test_streams_that_are_given_up_make_room_for_others(kubelet: Kubelet) -> None:
    with grpc.insecure_channel(f"unix:{kubelet.paths.dra}") as channel:
        stub: Any = v1_grpc.DRAResourceHealthStub(channel)  # type: ignore[no-untyped-call]
        for _ in range(12):
            call = stub.NodeWatchResources(v1.NodeWatchResourcesRequest(), timeout=30, wait_for_ready=True)
            assert wait_first(call, stub)
            call.cancel()


def wait_first(call: Any, stub: Any) -> Any:
    """The first answer; a stream that was cancelled ends a moment later."""
    for _ in range(100):
        try:
            return next(call)
        except grpc.RpcError:
            threading.Event().wait(0.05)
            call = stub.NodeWatchResources(v1.NodeWatchResourcesRequest(), timeout=30)
    raise AssertionError("no stream is free")


def test_dead_sockets_of_a_killed_instance_are_removed_and_live_ones_kept(node: Node) -> None:
    registry = node.root / "r"
    registry.mkdir()
    dead, live = registry / "gpu.aliquot.dev-dead-reg.sock", registry / "gpu.aliquot.dev-live-reg.sock"
    other = registry / "other.driver-reg.sock"
    sockets = {}
    for path in (dead, live, other):
        sockets[path] = socket.socket(socket.AF_UNIX)
        sockets[path].bind(str(path))
    sockets[live].listen()
    for path in (dead, other):
        sockets[path].close()
    (registry / "gpu.aliquot.dev-reg.sock").touch()
    kubelet = Kubelet(node)
    try:
        assert (dead.exists(), live.exists(), other.exists()) == (False, True, True)
    finally:
        kubelet.stop()
        sockets[live].close()


def test_two_instances_of_an_update_have_their_own_sockets() -> None:
    one, two = (
        registration.sockets(plugin_dir=Path("/p"), registry_dir=Path("/r"), pod_uid=uid)
        for uid in ("a", "b")
    )
    assert len({one.dra, one.registrar, two.dra, two.registrar}) == 4
    deep = registration.sockets(plugin_dir=Path("/p" * 40), registry_dir=Path("/r"), pod_uid="u" * 36)
    assert len(str(deep.dra)) <= 107


def test_a_socket_that_another_instance_put_there_stays(node: Node) -> None:
    kubelet = Kubelet(node)
    others = []
    for path in (kubelet.paths.dra, kubelet.paths.registrar):
        path.unlink()
        others.append(socket.socket(socket.AF_UNIX))
        others[-1].bind(str(path))
    kubelet.stop()
    assert [path.is_socket() for path in (kubelet.paths.dra, kubelet.paths.registrar)] == [True, True]
    for other in others:
        other.close()


def test_the_claims_of_one_call_share_its_time(node: Node) -> None:
    node.patience_s = 6
    (node.root / "base" / "vendor.json").unlink()  # GPU access does not come
    kubelet = Kubelet(node)
    try:
        gpu = node.gpus.gpus[0]
        refs = [node.server.add(make_claim(result(gpu), name=name)) for name in ("a", "b", "c")]
        response = kubelet.prepare(*refs)  # within its 10 s
        assert all("no CDI spec" in response.claims[ref.uid].error for ref in refs)
    finally:
        kubelet.stop()


def test_claims_that_wait_for_room_keep_nobody_from_giving_it_back(node: Node) -> None:
    node.patience_s = 25.0
    node.gpus.policy = NodePolicy(defaults=GpuPolicy(shares=100))
    gpu = node.gpus.gpus[0]
    holder = node.server.add(make_claim(result(gpu, memory=None), name="holder"))
    waiting = [
        node.server.add(make_claim(result(gpu, memory="100Mi"), name=f"waiting-{number}"))
        for number in range(40)  # more than kubelet's pods would usually be at once
    ]
    kubelet = Kubelet(node)
    try:
        assert not kubelet.prepare(holder).claims[holder.uid].error
        requests = [dra_pb2.NodePrepareResourcesRequest(claims=[message(ref)]) for ref in waiting]
        calls = [kubelet.dra.NodePrepareResources.future(each, timeout=60) for each in requests]
        wait_for(lambda: node.server.reads > len(waiting))
        kubelet.unprepare(holder)
        answers = [call.result().claims[ref.uid] for call, ref in zip(calls, waiting, strict=True)]
    finally:
        kubelet.stop()
    assert [answer.error for answer in answers] == [""] * len(waiting)
