# SPDX-License-Identifier: Apache-2.0
"""Both services over real unix sockets, with a client that plays kubelet."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aliquot_agent import registration
from aliquot_agent.kubeletapi.dra.v1 import dra_pb2, dra_pb2_grpc
from aliquot_agent.kubeletapi.registration.v1 import registration_pb2, registration_pb2_grpc
from aliquot_agent.metrics import Metrics
from aliquot_agent.plugin import DraPlugin
from tests.unit.agent.kit import Node, make_claim, result

STALE = b"left by a killed agent"


class Kubelet:
    """Calls as kubelet does."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.claims = node.claims()
        self.metrics = Metrics()
        self.registered: list[tuple[bool, str]] = []
        self.paths = registration.sockets(
            plugin_dir=node.root / "p", registry_dir=node.root / "r", pod_uid=""
        )
        self.paths.registrar.parent.mkdir()
        self.paths.registrar.write_bytes(STALE)
        self.servers = registration.Servers(
            paths=self.paths,
            plugin=DraPlugin(
                claims=self.claims, prepared=self.metrics.prepared, unprepared=self.metrics.unprepared
            ),
            registered=lambda accepted, error: self.registered.append((accepted, error)),
        )
        self.servers.start()
        self._channels = [
            grpc.insecure_channel(f"unix:{path}") for path in (self.paths.dra, self.paths.registrar)
        ]
        self.dra: Any = dra_pb2_grpc.DRAPluginStub(self._channels[0])  # type: ignore[no-untyped-call]
        self.registrar: Any = registration_pb2_grpc.RegistrationStub(self._channels[1])  # type: ignore[no-untyped-call]

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
    assert list(info.supported_versions) == ["v1.DRAPlugin"]
    status = registration_pb2.RegistrationStatus(plugin_registered=False, error="no")
    kubelet.registrar.NotifyRegistrationStatus(status, timeout=10)
    assert kubelet.registered == [(False, "no")]


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


def test_durations_are_counted(kubelet: Kubelet) -> None:
    ref = kubelet.node.server.add(make_claim(result(kubelet.node.gpus.gpus[0])))
    kubelet.prepare(ref)
    kubelet.unprepare(ref)
    text = kubelet.metrics.text().decode()
    assert "aliquot_prepare_seconds_count 1.0" in text
    assert "aliquot_unprepare_seconds_count 1.0" in text


def test_both_sockets_are_gone_after_the_end(node: Node) -> None:
    kubelet = Kubelet(node)
    assert kubelet.paths.dra.is_socket()
    assert kubelet.paths.registrar.is_socket()
    kubelet.stop()
    assert not kubelet.paths.dra.exists()
    assert not kubelet.paths.registrar.exists()


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
