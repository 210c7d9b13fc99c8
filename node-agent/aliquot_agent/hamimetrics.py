# SPDX-License-Identifier: Apache-2.0
"""HAMi's metric names for our figures, opt-in, so that dashboards made for it live on.

What its monitor and its scheduler say of one node, under the newer names. Left out is what we have no figure
for: context, module and buffer sizes, and the time of the last kernel. Its `*_ratio` values go from 0 to 100.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot_agent.devices import CORES
from aliquot_agent.metrics import Sources
from aliquot_agent.nvml import Gpu
from aliquot_agent.picture import Observation

_GPU: Final = ("node", "device_index", "device_uuid", "device_type")
_CONTAINER: Final = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_SCHEDULER: Final = ("node", "device_uuid", "device_index", "device_type")
_POD: Final = ("namespace", "node", "pod", "container_index", "device_uuid")

_Rows = list[tuple[tuple[str, ...], float]]
_AnyRows = Sequence[tuple[tuple[str, ...], float]]


class HamiCollector(Collector):
    """The families, made at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources

    def collect(self) -> Iterator[Metric]:
        """All families."""
        observations = self._from.picture().observations
        yield from self._host()
        yield from self._containers(observations)
        yield from self._scheduler(observations)

    def _host(self) -> Iterator[Metric]:
        loads = self._from.loads()
        memory: _Rows = []
        busy: _Rows = []
        controller: _Rows = []
        for gpu in self._from.gpus().values():
            load = loads.get(gpu.uuid)
            labels = (self._from.node, str(gpu.index), gpu.uuid, gpu.product_name)
            if load is not None and load.used_bytes is not None:
                memory.append((labels, load.used_bytes))
            if load is not None and load.busy_percent is not None:
                busy.append((labels, load.busy_percent))
            if load is not None and load.memory_busy_percent is not None:
                controller.append((labels[1:], load.memory_busy_percent))
        yield _family("host_gpu_memory_used_bytes", _GPU, memory)
        yield _family("host_gpu_utilization_ratio", _GPU, busy)
        yield _family("host_gpu_memory_controller_utilization_ratio", _GPU[1:], controller)

    def _containers(self, observations: Sequence[Observation]) -> Iterator[Metric]:
        used: _Rows = []
        limit: _Rows = []
        for labels, seen in self._rows(observations):
            used.append((labels, seen.usage.used_bytes))
            limit.append((labels, seen.usage.limit_bytes))
        yield _family("vgpu_memory_used_bytes", _CONTAINER, used)
        yield _family("vgpu_memory_limit_bytes", _CONTAINER, limit)
        yield _family("container_device_memory_bytes", _CONTAINER, used)

    def _rows(self, observations: Sequence[Observation]) -> Iterator[tuple[tuple[str, ...], Observation]]:
        """One row for each container and each of its cards, which HAMi numbers from 0."""
        cards: dict[tuple[str, str, str], int] = {}
        for seen in observations:
            for user in self._from.users(seen):
                key = (user.namespace, user.pod, user.container)
                index = cards.get(key, 0)
                cards[key] = index + 1
                yield (*key, str(index), seen.share.gpu_uuid), seen

    def _scheduler(self, observations: Sequence[Observation]) -> Iterator[Metric]:
        gpus = self._from.gpus()
        memory = _sums(observations, lambda seen: seen.share.memory_bytes)
        cores = _sums(observations, lambda seen: seen.share.cores_percent)
        count = _sums(observations, lambda _: 1)
        limits = {gpu.uuid: self._from.offered_bytes().get(device, 0) for device, gpu in gpus.items()}
        ratio = {
            uuid: 100 * memory.get(uuid, 0) / limit_bytes
            for uuid, limit_bytes in limits.items()
            if limit_bytes
        }
        for name, values in (
            ("gpu_memory_limit_bytes", limits),
            ("gpu_core_limit_ratio", dict.fromkeys(limits, CORES)),
            ("gpu_shared_count", count),
            ("gpu_core_allocated_ratio", cores),
            ("node_gpu_memory_allocated_ratio", ratio),
        ):
            yield _family(
                name, _SCHEDULER, [(self._gpu(gpu), values.get(gpu.uuid, 0)) for gpu in gpus.values()]
            )
        allocated = [
            ((*self._gpu(gpu), str(cores.get(gpu.uuid, 0))), memory.get(gpu.uuid, 0)) for gpu in gpus.values()
        ]
        yield _family("gpu_memory_allocated_bytes", (*_SCHEDULER, "device_cores"), allocated)
        pod_memory: _Rows = []
        pod_cores: _Rows = []
        for seen in observations:
            for user in self._from.users(seen):
                index = str(user.container_index)
                labels = (user.namespace, self._from.node, user.pod, index, seen.share.gpu_uuid)
                pod_memory.append((labels, seen.share.memory_bytes))
                pod_cores.append((labels, seen.share.cores_percent))
        yield _family("vgpu_memory_allocated_bytes", _POD, pod_memory)
        yield _family("vgpu_core_allocated_ratio", _POD, pod_cores)

    def _gpu(self, gpu: Gpu) -> tuple[str, ...]:
        return (self._from.node, gpu.uuid, str(gpu.index), gpu.product_name)


def _sums(observations: Sequence[Observation], value: Callable[[Observation], int]) -> Mapping[str, int]:
    sums: dict[str, int] = {}
    for seen in observations:
        sums[seen.share.gpu_uuid] = sums.get(seen.share.gpu_uuid, 0) + value(seen)
    return sums


def _family(name: str, labels: tuple[str, ...], rows: _AnyRows) -> Metric:
    family = GaugeMetricFamily(f"hami_{name}", "As HAMi names it; see the page on metrics", labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family
