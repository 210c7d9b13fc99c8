# SPDX-License-Identifier: Apache-2.0
"""Puts the agent together, starts its parts in order and stops them in reverse."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from aliquot_agent import fit, registration
from aliquot_agent.cdi import BaseSpecs
from aliquot_agent.checkpoint import Checkpoints
from aliquot_agent.claims import Claims
from aliquot_agent.hardware import Hardware
from aliquot_agent.kube import Kube
from aliquot_agent.library import Library
from aliquot_agent.metrics import AgentCollector, Metrics, MetricsServer
from aliquot_agent.nvml import Nvml
from aliquot_agent.plugin import DraPlugin
from aliquot_agent.publisher import Publisher
from aliquot_agent.readiness import Readiness
from aliquot_agent.reconcile import Reconciler
from aliquot_agent.report import Reporter
from aliquot_agent.settings import Settings
from aliquot_agent.watcher import Watcher

logger = logging.getLogger(__name__)

_REGISTRATION: Final = "registration"


class Agent:
    """The whole agent. `start`, `wait`, `stop`; `failed` says why it ended by itself."""

    def __init__(self, *, settings: Settings, kube: Kube) -> None:
        self._readiness = Readiness()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()  # reentrant: signal handlers put
        self.failed: str | None = None
        self._hardware = Hardware(
            open_nvml=Nvml,
            readiness=self._readiness,
            reserve_bytes=settings.reserve_bytes,
            shares_per_gpu=settings.shares_per_gpu,
        )
        self._claims = Claims(
            node=settings.node_name,
            boot_id=settings.boot_id_file.read_text().strip(),
            source=kube,
            gpus=self._hardware,
            checkpoints=Checkpoints(directory=settings.checkpoint_dir),
            base=BaseSpecs(directories=settings.base_cdi_dirs, kind=settings.base_cdi_kind),
            library=Library(source=settings.library, state_dir=settings.state_dir),
            claims_dir=settings.claims_dir,
            cdi_dir=settings.cdi_dir,
            reserve_bytes=settings.reserve_bytes,
            shares_per_gpu=settings.shares_per_gpu,
            context_estimate_bytes=settings.context_estimate_bytes,
        )
        self._publisher = Publisher(
            api=kube,
            node=settings.node_name,
            devices=lambda: self._hardware.published(most_bytes=fit.held_whole(self._claims.prepared())),
            readiness=self._readiness,
        )
        self._watcher = Watcher(claims=self._claims, hardware=self._hardware, changed=self._publisher.poke)
        self._reporter = Reporter(
            api=kube,
            node=settings.node_name,
            observations=lambda: self._watcher.picture().observations,
            interval_s=settings.report_interval_s,
        )
        self._reconciler = Reconciler(
            claims=self._claims, claims_dir=settings.claims_dir, cdi_dir=settings.cdi_dir
        )
        metrics = Metrics()
        metrics.register(AgentCollector(picture=self._watcher.picture, gpus=self._hardware.by_device))
        self._metrics = MetricsServer(port=settings.metrics_port, metrics=metrics, readiness=self._readiness)
        self._servers = registration.Servers(
            paths=registration.sockets(
                plugin_dir=settings.plugin_dir, registry_dir=settings.registry_dir, pod_uid=settings.pod_uid
            ),
            plugin=DraPlugin(claims=self._claims, prepared=metrics.prepared, unprepared=metrics.unprepared),
            registered=self._registered,
        )

    def start(self) -> None:
        """Claims first, so that kubelet's calls find them; kubelet last but for the publisher."""
        threading.excepthook = self._thread_died
        self._readiness.refuse(_REGISTRATION, "kubelet has not registered the driver yet")
        self._hardware.refresh()
        self._claims.start()
        self._metrics.start()
        self._watcher.start()
        self._reporter.start()
        self._reconciler.start()
        self._servers.start()
        self._publisher.start()

    def wait(self) -> None:
        """Until `end`, or until the agent cannot go on."""
        self._ended.get()

    def end(self) -> None:
        """Makes `wait` return; safe in a signal handler."""
        self._ended.put(None)

    def stop(self) -> None:
        """Ends every thread and removes both sockets, within seconds. Running pods notice nothing."""
        stops: tuple[Callable[[], None], ...] = (
            self._servers.stop,
            self._publisher.stop,
            self._reconciler.stop,
            self._reporter.stop,
            self._watcher.stop,
            self._metrics.stop,
            self._hardware.close,
        )
        for stop in stops:
            try:
                stop()
            except Exception as error:  # the others must still stop
                logger.exception("a part does not stop")
                self.failed = self.failed or f"a part does not stop: {error!r}"

    def _registered(self, accepted: bool, error: str) -> None:
        if accepted:
            logger.info("kubelet registered the driver")
            self._readiness.allow(_REGISTRATION)
        else:
            self._fail(f"kubelet refused the driver: {error}")

    def _thread_died(self, arguments: threading.ExceptHookArgs) -> None:
        """A defect: better a restart than an agent that does half its work."""
        name = arguments.thread.name if arguments.thread else "?"
        error = arguments.exc_value
        logger.critical("thread died", extra={"name_of_thread": name}, exc_info=error)
        self._fail(f"thread {name} died: {error!r}")

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._ended.put(None)
