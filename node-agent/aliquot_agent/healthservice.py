# SPDX-License-Identifier: Apache-2.0
"""The health stream that kubelet listens to, so that a pod's status shows the health of its GPUs.

Two protocols that differ in their names only: v1 (Kubernetes 1.37) and v1alpha1 before it. Kubelet counts a
device as unknown when it was not told anew for a while, so that the list is sent again unchanged.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import grpc

from aliquot_agent.kubeletapi.health.v1 import health_pb2 as v1
from aliquot_agent.kubeletapi.health.v1 import health_pb2_grpc as v1_grpc
from aliquot_agent.kubeletapi.health.v1alpha1 import health_pb2 as v1alpha1
from aliquot_agent.kubeletapi.health.v1alpha1 import health_pb2_grpc as v1alpha1_grpc

VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_AGAIN_S: Final = 10.0
_TIMEOUT_S: Final = 30
_MOST_STREAMS: Final = 4
"""Each takes one of the server's threads; kubelet keeps one."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device as kubelet shall know it."""

    pool: str
    device: str
    healthy: bool
    message: str


class HealthService:
    """Both servicers; `poke` when something changed, `stop` before the server ends."""

    def __init__(self, *, devices: Callable[[], Sequence[DeviceHealth]]) -> None:
        self._devices = devices
        self._changed = threading.Condition()
        self._round = 0
        self._stopped = False
        self._streams = threading.BoundedSemaphore(_MOST_STREAMS)

    def add_to(self, server: grpc.Server) -> None:
        """Serves both protocols on `server`."""
        v1_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call] # generated
            _Servicer(self, v1), server
        )
        v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call] # generated
            _Servicer(self, v1alpha1), server
        )

    def poke(self) -> None:
        """Something changed: tells it now."""
        with self._changed:
            self._round += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends all streams."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def stream(self, messages: ModuleType, context: grpc.ServicerContext) -> Iterator[Any]:
        """The whole list now, after each change, and every ten seconds."""
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_STREAMS} streams are open already")
        context.add_callback(self.poke)  # so that a stream whose client has gone ends at once
        try:
            while context.is_active():
                with self._changed:
                    told = self._round
                yield self._response(messages)
                if not self._wait(told):
                    return
        finally:
            self._streams.release()

    def _wait(self, told: int) -> bool:
        """Until there is something to tell; False when the service ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._round != told, _AGAIN_S)
            return not self._stopped

    def _response(self, messages: ModuleType) -> Any:
        now_s = int(time.time())
        return messages.NodeWatchResourcesResponse(
            devices=[
                messages.DeviceHealth(
                    device=messages.DeviceIdentifier(pool_name=each.pool, device_name=each.device),
                    health=messages.HEALTHY if each.healthy else messages.UNHEALTHY,
                    last_updated_time=now_s,
                    health_check_timeout_seconds=_TIMEOUT_S,
                    message=each.message,
                )
                for each in self._devices()
            ]
        )


class _Servicer:
    """One protocol."""

    def __init__(self, service: HealthService, messages: ModuleType) -> None:
        self._service = service
        self._messages = messages

    def NodeWatchResources(self, request: object, context: grpc.ServicerContext) -> Iterator[Any]:
        """Kubelet's call."""
        return self._service.stream(self._messages, context)
