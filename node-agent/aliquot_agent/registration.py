# SPDX-License-Identifier: Apache-2.0
"""Both sockets: the DRA service first, then the registrar that tells kubelet where it is.

Kubelet watches the registry folder and calls at once, so the registrar's socket appears last and goes
first. A dead socket there makes kubelet retry for ever: our own stale ones are removed before we begin.
"""

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from aliquot_agent import healthservice
from aliquot_agent.healthservice import HealthService
from aliquot_agent.kubeletapi.dra.v1 import dra_pb2_grpc
from aliquot_agent.kubeletapi.registration.v1 import registration_pb2, registration_pb2_grpc
from aliquot_api.names import DRIVER

logger = logging.getLogger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
VERSIONS: Final = ("v1.DRAPlugin", *healthservice.VERSIONS)
"""Kubelet takes the first protocol that it knows, and health where it is among them."""
_LONGEST_SOCKET: Final = 107
"""Bytes of a unix socket's path, without the terminator."""
_CALLS: Final = 256
"""More than a node has pods: each call may wait 30 s, and the Unprepare that ends it must get through.

Threads are made when they are needed, but for those of a usual burst."""
_BURST: Final = 64
_GRACE_S: Final = 5.0
_PROBE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """Paths of our two sockets."""

    dra: Path
    registrar: Path


def sockets(*, plugin_dir: Path, registry_dir: Path, pod_uid: str) -> Sockets:
    """Kubelet's names; with the pod's UID in them two instances can overlap in a rolling update."""
    dra = plugin_dir / (f"dra-{pod_uid}.sock" if pod_uid else "dra.sock")
    registrar = registry_dir / (f"{DRIVER}-{pod_uid}-reg.sock" if pod_uid else f"{DRIVER}-reg.sock")
    return Sockets(dra=_fitting(dra), registrar=_fitting(registrar))


def _fitting(path: Path) -> Path:
    if len(str(path)) <= _LONGEST_SOCKET:
        return path
    return path.with_name(hashlib.sha256(path.name.encode()).hexdigest()[:16] + ".sock")


class Registrar(registration_pb2_grpc.RegistrationServicer):
    """Answers kubelet's questions about us."""

    def __init__(self, *, endpoint: Path, registered: Callable[[bool, str], None]) -> None:
        self._endpoint = endpoint
        self._registered = registered

    def GetInfo(
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        """Who we are."""
        return registration_pb2.PluginInfo(
            type=PLUGIN_TYPE, name=DRIVER, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        """What kubelet decided."""
        self._registered(request.plugin_registered, request.error)
        return registration_pb2.RegistrationStatusResponse()


class Servers:
    """The two gRPC servers. `start`, then `stop`."""

    def __init__(
        self,
        *,
        paths: Sockets,
        plugin: dra_pb2_grpc.DRAPluginServicer,
        health: HealthService,
        registered: Callable[[bool, str], None],
    ) -> None:
        self._paths = paths
        self._inodes: dict[Path, tuple[int, int]] = {}
        self._calls = _threads(_CALLS)
        self._dra = grpc.server(self._calls)
        dra_pb2_grpc.add_DRAPluginServicer_to_server(  # type: ignore[no-untyped-call] # generated
            plugin, self._dra
        )
        self._health = health
        health.add_to(self._dra)
        self._registrar = grpc.server(_threads(1))
        registration_pb2_grpc.add_RegistrationServicer_to_server(  # type: ignore[no-untyped-call] # generated
            Registrar(endpoint=paths.dra, registered=registered), self._registrar
        )

    def start(self) -> None:
        """Serves DRA, then lets kubelet know."""
        _make(self._calls, _BURST)
        for path, server in ((self._paths.dra, self._dra), (self._paths.registrar, self._registrar)):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_dead(path)
            # gRPC unlinks the path it was given when it ends, whoever's socket is there by then, so that
            # one is used up at once. Kubelet passes over names with a dot.
            hidden = path.with_name(f".{os.getpid()}")
            hidden.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{hidden}")
            server.start()
            self._inodes[path] = _inode(hidden)
            hidden.rename(path)
            logger.info("serving", extra={"socket": str(path)})

    def stop(self) -> None:
        """Lets calls finish for some seconds, then removes both sockets, the registrar's first."""
        self._health.stop()
        for path, server in ((self._paths.registrar, self._registrar), (self._paths.dra, self._dra)):
            server.stop(_GRACE_S).wait()
            with suppress(FileNotFoundError):
                if _inode(path) == self._inodes.get(path):  # else it is the next instance's
                    path.unlink()


def _remove_dead(path: Path) -> None:
    """Removes sockets beside `path` that a killed agent left: kubelet would call a dead one for ever.

    Those of a live peer answer, in a rolling update it is there for a while.
    """
    prefix, suffix = (DRIVER, "-reg.sock") if path.name.startswith(DRIVER) else ("dra", ".sock")
    for other in path.parent.glob(f"{prefix}*{suffix}"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_S)
            try:
                probe.connect(str(other))
            except ConnectionRefusedError:
                logger.info("removing a dead socket", extra={"socket": str(other)})
                other.unlink(missing_ok=True)


def _inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _threads(most: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=most, thread_name_prefix="grpc")


def _make(pool: ThreadPoolExecutor, threads: int) -> None:
    """Makes threads beforehand: with a burst of calls waiting, each new one holds up all of them."""
    met = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(met.wait)
    met.wait()
