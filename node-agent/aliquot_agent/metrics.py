# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics, liveness and readiness over HTTP. A series lives as long as its claim."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot_agent.nvml import Gpu
from aliquot_agent.readiness import Readiness
from aliquot_agent.watcher import Picture
from aliquot_api.names import METRICS_PREFIX

_LABELS: Final = ("namespace", "claim", "request", "gpu_uuid", "share")
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 45)
"""From one millisecond up: kubelet's own histogram begins at 100 ms."""


class AgentCollector(Collector):
    """Families made from what was seen last, at each scrape."""

    def __init__(self, *, picture: Callable[[], Picture], gpus: Callable[[], Mapping[str, Gpu]]) -> None:
        self._picture = picture
        self._gpus = gpus

    def collect(self) -> Iterator[Metric]:
        """All families of shares and GPUs."""
        picture = self._picture()
        limit = _gauge("share_memory_limit_bytes", "Memory the share may take", _LABELS)
        used = _gauge("share_memory_used_bytes", "Memory the share takes, contexts included", _LABELS)
        peak = _gauge("share_memory_peak_bytes", "Most memory the share has taken", _LABELS)
        processes = _gauge("share_processes", "Processes that use the share", _LABELS)
        denied = CounterMetricFamily(
            f"{METRICS_PREFIX}share_denied", "Requests for memory that the limit refused", labels=_LABELS
        )
        allocated: dict[str, int] = {}
        shares: dict[str, int] = {}
        for seen in picture.observations:
            claim, share, usage = seen.claim, seen.share, seen.usage
            labels = (claim.namespace, claim.name, share.request, share.gpu_uuid, share.share)
            limit.add_metric(labels, usage.limit_bytes)
            used.add_metric(labels, usage.used_bytes)
            peak.add_metric(labels, usage.peak_bytes)
            processes.add_metric(labels, usage.processes)
            denied.add_metric(labels, usage.denied)
            allocated[share.gpu_uuid] = allocated.get(share.gpu_uuid, 0) + share.memory_bytes
            shares[share.gpu_uuid] = shares.get(share.gpu_uuid, 0) + 1
        yield from (limit, used, peak, processes, denied)
        yield from self._gpu_families(allocated=allocated, shares=shares, strangers=dict(picture.unaccounted))

    def _gpu_families(
        self, *, allocated: Mapping[str, int], shares: Mapping[str, int], strangers: Mapping[str, int]
    ) -> Iterator[Metric]:
        uuids = [gpu.uuid for gpu in self._gpus().values()]
        physical = {gpu.uuid: gpu.memory_bytes for gpu in self._gpus().values()}
        for name, text, values in (
            ("gpu_memory_bytes", "Memory of the GPU", physical),
            ("gpu_memory_allocated_bytes", "Memory of the GPU that prepared shares hold", allocated),
            ("gpu_shares", "Shares prepared on the GPU", shares),
            ("unaccounted_processes", "Processes on a GPU with shares that no ledger knows", strangers),
        ):
            family = _gauge(name, text, ("gpu_uuid",))
            for uuid in uuids:
                family.add_metric((uuid,), values.get(uuid, 0))
            yield family


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{METRICS_PREFIX}{name}", text, labels=labels)


class Metrics:
    """The registry, with the histograms that others feed."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._prepare = self._histogram("prepare_seconds", "Time to prepare one claim that succeeded")
        self._unprepare = self._histogram("unprepare_seconds", "Time to unprepare one claim that succeeded")

    def register(self, collector: Collector) -> None:
        """Adds families that are made at each scrape."""
        self._registry.register(collector)

    def prepared(self, took_s: float) -> None:
        """A claim was prepared."""
        self._prepare.observe(took_s)

    def unprepared(self, took_s: float) -> None:
        """A claim was unprepared."""
        self._unprepare.observe(took_s)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"{METRICS_PREFIX}{name}", text, buckets=_BUCKETS, registry=self._registry)


class MetricsServer:
    """HTTP on all addresses: /metrics, /healthz, /readyz. `start`, then `stop`."""

    def __init__(self, *, port: int, metrics: Metrics, readiness: Readiness) -> None:
        def answer(path: str) -> tuple[HTTPStatus, str, bytes]:
            if path == "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics.text()
            if path == "/healthz":
                return HTTPStatus.OK, "text/plain", b"ok\n"
            if path == "/readyz":
                reasons = readiness.reasons()
                status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
                body = json.dumps({"ready": not reasons, "reasons": reasons}) + "\n"
                return status, "application/json", body.encode()
            return HTTPStatus.NOT_FOUND, "text/plain", b"want /metrics, /healthz or /readyz\n"

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            timeout = 10

            def do_GET(self) -> None:
                """Answers."""
                status, content_type, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not news."""

        self._server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
