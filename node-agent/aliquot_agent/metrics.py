# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of shares, GPUs and the agent itself. A series lives as long as its claim.

docs/metrics.md lists all of them; a test holds it to this module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot_agent.attribution import Key
from aliquot_agent.hardware import LeftOut
from aliquot_agent.health import Condition
from aliquot_agent.nvml import Gpu, Load
from aliquot_agent.pacing import Paced
from aliquot_agent.picture import Observation, Picture
from aliquot_agent.region import COST_FACTOR_ONE
from aliquot_api.names import METRICS_PREFIX

_LABELS: Final = ("namespace", "pod", "container", "claim", "request", "gpu_uuid", "share")
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 45)
"""From one millisecond up: kubelet's own histogram begins at 100 ms."""


@dataclass(frozen=True, slots=True)
class User:
    """A container that a share is given to."""

    namespace: str
    pod: str
    container: str
    container_index: int
    """Among the pod's containers that have shares."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from; each is asked at each scrape."""

    node: str
    picture: Callable[[], Picture]
    users: Callable[[Observation], Sequence[User]]
    gpus: Callable[[], Mapping[str, Gpu]]
    loads: Callable[[], Mapping[str, Load]]
    """By GPU UUID."""
    offered_bytes: Callable[[], Mapping[str, int]]
    """What each device's slice shows, by device name."""
    conditions: Callable[[], Mapping[str, Condition]]
    left_out: Callable[[], Sequence[LeftOut]]
    slice_writes: Callable[[], Mapping[str, int]]
    config_problem: Callable[[], str]
    paced: Callable[[], Mapping[Key, Paced]] = dict
    untold: Callable[[], frozenset[str]] = frozenset
    """UUIDs of GPUs whose driver does not tell who uses them."""
    mps_lost: Callable[[], Mapping[str, int]] = dict
    """MPS daemons lost, by GPU UUID."""


class AgentCollector(Collector):
    """Families made from what was seen last, at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources

    def collect(self) -> Iterator[Metric]:
        """All families of shares and GPUs."""
        picture = self._from.picture()
        yield from self._share_families(picture)
        yield from self._compute_families(picture)
        yield from self._gpu_families(picture)
        writes = _counter("slice_writes", "Writes of this node's ResourceSlice, by kind", ("verb",))
        for verb, count in self._from.slice_writes().items():
            writes.add_metric((verb,), count)
        yield writes
        invalid = _gauge("node_config_invalid", "1 while ConfigMap aliquot-node-config is not understood", ())
        invalid.add_metric((), int(bool(self._from.config_problem())))
        yield invalid

    def _share_families(self, picture: Picture) -> Iterator[Metric]:
        limit = _gauge("share_memory_limit_bytes", "Memory the share may take", _LABELS)
        used = _gauge("share_memory_used_bytes", "Memory the share takes, contexts included", _LABELS)
        peak = _gauge("share_memory_peak_bytes", "Most memory the share has taken", _LABELS)
        drift = _gauge("share_drift_bytes", "What the driver counts beyond the share's ledger", _LABELS)
        processes = _gauge("share_processes", "Processes that use the share", _LABELS)
        denied = _counter("share_denied", "Requests for memory that the limit refused", _LABELS)
        throttled = _counter("share_throttled_seconds", "Time that launches were held back", _LABELS)
        actions = _counter("share_over_quota", "What was done about too much memory", (*_LABELS, "action"))
        for seen in picture.observations:
            labels = _labels(seen, self._from.users(seen))
            limit.add_metric(labels, seen.usage.limit_bytes)
            used.add_metric(labels, seen.usage.used_bytes)
            peak.add_metric(labels, seen.usage.peak_bytes)
            drift.add_metric(labels, seen.drift_bytes)
            processes.add_metric(labels, seen.usage.processes)
            denied.add_metric(labels, seen.usage.denied)
            throttled.add_metric(labels, seen.usage.throttled_ns / 1e9)
            for action, count in (
                ("warned", seen.warned),
                ("killed", seen.killed),
                ("evicted", seen.evicted),
            ):
                actions.add_metric((*labels, action), count)
        yield from (limit, used, peak, drift, processes, denied, throttled, actions)

    def _compute_families(self, picture: Picture) -> Iterator[Metric]:
        families: tuple[tuple[GaugeMetricFamily | CounterMetricFamily, Callable[[Paced], float]], ...] = (
            (
                _gauge("share_cores_percent", "GPU time that the share is held to; 0: it is not", _LABELS),
                lambda paced: paced.reserved_millipercent / 1000,
            ),
            (
                _gauge("share_cores_lent_percent", "GPU time lent to it on top", _LABELS),
                lambda paced: paced.lent_millipercent / 1000,
            ),
            (
                _gauge("share_cost_factor", "What the prices of its launches are multiplied with", _LABELS),
                lambda paced: paced.factor_ppm / COST_FACTOR_ONE,
            ),
            (
                _counter("share_gpu_used_seconds", "GPU time its processes had, by the driver", _LABELS),
                lambda paced: paced.used_ns / 1e9,
            ),
            (
                _counter("share_gpu_granted_seconds", "GPU time its launches drew, by its ledger", _LABELS),
                lambda paced: paced.granted_ns / 1e9,
            ),
            (
                _gauge("share_pacing_escaped", "1 while it uses far more than it may", _LABELS),
                lambda paced: float(bool(paced.escape)),
            ),
        )
        paced = self._from.paced()
        for seen in picture.observations:
            found = paced.get((seen.claim.uid, seen.share.share))
            if found is not None:
                labels = _labels(seen, self._from.users(seen))
                for family, value in families:
                    family.add_metric(labels, value(found))
        yield from (family for family, _ in families)

    def _gpu_families(self, picture: Picture) -> Iterator[Metric]:
        allocated: dict[str, int] = {}
        shares: dict[str, int] = {}
        for seen in picture.observations:
            uuid = seen.share.gpu_uuid
            allocated[uuid] = allocated.get(uuid, 0) + seen.share.taken_bytes
            shares[uuid] = shares.get(uuid, 0) + 1
        gpus = self._from.gpus()
        offered = {
            gpus[device].uuid: bytes_
            for device, bytes_ in self._from.offered_bytes().items()
            if device in gpus
        }
        free = {uuid: max(0, bytes_ - allocated.get(uuid, 0)) for uuid, bytes_ in offered.items()}
        loads = self._from.loads()
        used = {uuid: load.used_bytes for uuid, load in loads.items() if load.used_bytes is not None}
        busy = {uuid: load.busy_percent for uuid, load in loads.items() if load.busy_percent is not None}
        healthy = {uuid: int(condition.healthy) for uuid, condition in self._from.conditions().items()}
        for name, text, values, default in (
            (
                "gpu_memory_bytes",
                "Memory of the GPU",
                {gpu.uuid: gpu.memory_bytes for gpu in gpus.values()},
                0,
            ),
            ("gpu_memory_used_bytes", "Memory of the GPU in use, by its driver", used, None),
            ("gpu_memory_published_bytes", "Memory that the GPU's slice shows", offered, 0),
            ("gpu_memory_allocated_bytes", "Memory that prepared shares hold, growth included", allocated, 0),
            ("gpu_memory_free_bytes", "Published memory that no prepared share holds", free, 0),
            ("gpu_memory_outside_bytes", "Memory held outside any share", dict(picture.outside), 0),
            ("gpu_utilization_percent", "Time in which kernels ran, by the driver", busy, None),
            ("gpu_shares", "Shares prepared on the GPU", shares, 0),
            ("gpu_healthy", "0 while the GPU is tainted", healthy, 1),
            (
                "gpu_use_by_process",
                "0 where the driver does not tell who uses the GPU: no price is corrected",
                dict.fromkeys(self._from.untold(), 0),
                1,
            ),
            (
                "unaccounted_processes",
                "Processes on a GPU that no ledger knows",
                dict(picture.unaccounted),
                0,
            ),
        ):
            family = _gauge(name, text, ("gpu_uuid",))
            for gpu in gpus.values():
                value = values.get(gpu.uuid, default)
                if value is not None:
                    family.add_metric((gpu.uuid,), value)
            yield family
        lost = _counter("gpu_mps_daemon_lost", "MPS daemons lost under programs", ("gpu_uuid",))
        for gpu in gpus.values():
            lost.add_metric((gpu.uuid,), self._from.mps_lost().get(gpu.uuid, 0))
        yield lost
        left_out = _gauge(
            "gpu_left_out", "GPUs that are not published, by cause", ("index", "gpu_uuid", "cause")
        )
        for each in self._from.left_out():
            left_out.add_metric((str(each.index), each.uuid, each.cause), 1)
        yield left_out


def _labels(seen: Observation, users: Sequence[User]) -> tuple[str, ...]:
    """Several users of one share stand in one label: the figures are of all of them together."""
    claim, share = seen.claim, seen.share
    pods = ",".join(dict.fromkeys(user.pod for user in users))
    containers = ",".join(dict.fromkeys(user.container for user in users))
    return (claim.namespace, pods, containers, claim.name, share.request, share.gpu_uuid, share.share)


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{METRICS_PREFIX}{name}", text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"{METRICS_PREFIX}{name}", text, labels=labels)


class Metrics:
    """The registry, with the figures that others feed."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._prepare = self._histogram("prepare_seconds", "Time to prepare one claim that succeeded")
        self._unprepare = self._histogram("unprepare_seconds", "Time to unprepare one claim that succeeded")
        text = "Calls of kubelet for one claim that failed"
        self._failures = Counter(f"{METRICS_PREFIX}failures", text, ("call",), registry=self._registry)
        for call in ("prepare", "unprepare"):
            self._failures.labels(call)

    def register(self, collector: Collector) -> None:
        """Adds families that are made at each scrape."""
        self._registry.register(collector)

    def prepared(self, took_s: float) -> None:
        """A claim was prepared."""
        self._prepare.observe(took_s)

    def unprepared(self, took_s: float) -> None:
        """A claim was unprepared."""
        self._unprepare.observe(took_s)

    def failed(self, call: str) -> None:
        """A claim was not prepared, or not unprepared."""
        self._failures.labels(call).inc()

    def page(self) -> tuple[str, bytes]:
        """The exposition and its type."""
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"{METRICS_PREFIX}{name}", text, buckets=_BUCKETS, registry=self._registry)
