# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a pod shall be one, different, or near each other: constraints inside a claim."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_webhook import wishes
from aliquot_webhook.claims import Constraint
from aliquot_webhook.inventory import NUMA_NODE, PCIE_ROOT, Inventory
from aliquot_webhook.wishes import Wishes

UUID_ATTRIBUTE: Final = f"{names.DRIVER}/uuid"


@dataclass(frozen=True, slots=True)
class Requests:
    """What a pod's constraints are about."""

    counts: Mapping[str, int]
    """GPUs of each request, in the order of the claim."""
    holder: Mapping[str, str]
    """The request that each container holds."""
    apart: Collection[str]
    """Requests that have a claim of their own."""

    def of(self, containers: Sequence[str], *, key: str) -> list[str]:
        """The requests of these containers, for the annotation `key`."""
        wanted = {self.holder[container] for container in containers}
        chosen = [name for name in self.counts if name in wanted]
        if len(chosen) > 1 and not wanted.isdisjoint(self.apart):
            raise _refusal(
                key,
                chosen,
                "on this Kubernetes version a container with several GPUs has a claim of its own, and no"
                " constraint can span claims; ask for one GPU per container (or use Kubernetes 1.36)",
            )
        return chosen


def constraints(
    wished: Wishes, requests: Requests, known: Inventory, warnings: list[str]
) -> Iterator[Constraint]:
    """The constraints that `wished` means, on GPUs of `known`. Raises InvalidInput for what cannot be."""
    if wished is wishes.NONE:
        return
    same = _single(names.ANNOTATION_SAME_GPU, wished.same_gpu, requests)
    if same:
        yield {"requests": same, "matchAttribute": UUID_ATTRIBUTE}
    spread = _single(names.ANNOTATION_SPREAD_GPUS, wished.spread, requests)
    if spread:
        _check_room(names.ANNOTATION_SPREAD_GPUS, spread, len(spread), known.most_gpus, "GPUs on one node")
        yield {"requests": spread, "distinctAttribute": UUID_ATTRIBUTE}
    aligned = [
        (names.ANNOTATION_NUMA_ALIGN, wished.numa, NUMA_NODE),
        (names.ANNOTATION_PCIE_ALIGN, wished.pcie, PCIE_ROOT),
    ]
    if wished.numa_bind and known.gpus and not _most_aligned(known, NUMA_NODE):
        # To HAMi all GPUs of a machine without NUMA nodes are on the same one.
        warnings.append(f"{wishes.NUMA_BIND} has no effect: no GPU of this cluster publishes {NUMA_NODE}")
    elif wished.numa_bind:
        aligned += [(wishes.NUMA_BIND, (name,), NUMA_NODE) for name in requests.counts]
    for key, containers, attribute in aligned:
        chosen = requests.of(containers, key=key)
        if sum(requests.counts[name] for name in chosen) > 1:
            least = max(sum(name in spread for name in chosen), *(requests.counts[name] for name in chosen))
            _check_aligned(key, chosen, least, known, attribute)
            yield {"requests": chosen, "matchAttribute": attribute}


def _single(key: str, containers: Sequence[str], requests: Requests) -> list[str]:
    """The requests, if there are several, each for one GPU."""
    chosen = requests.of(containers, key=key)
    if len(chosen) < 2:
        return []
    several = [name for name in chosen if requests.counts[name] > 1]
    if several:
        # distinctAttribute remembers one device of a request with several (up to 1.37).
        count = requests.counts[several[0]]
        raise _refusal(key, chosen, f"this is for containers with one GPU each, and {several[0]} has {count}")
    return chosen


def _check_aligned(key: str, chosen: Sequence[str], least: int, known: Inventory, attribute: str) -> None:
    most = _most_aligned(known, attribute)
    if known.gpus and not most:
        raise _refusal(key, chosen, f"no GPU of this cluster publishes {attribute}")
    _check_room(key, chosen, least, most, f"GPUs with the same {attribute} on one node")


def _most_aligned(known: Inventory, attribute: str) -> int:
    """How many GPUs a node has that agree about the attribute; 0 if none publishes it."""
    if attribute == NUMA_NODE:
        return known.most_together(lambda gpu: gpu.numa_node)
    return known.most_together(lambda gpu: gpu.pcie_root)


def _check_room(key: str, chosen: Sequence[str], wanted: int, most: int, what: str) -> None:
    if most and wanted > most:
        raise _refusal(key, chosen, f"that needs {wanted} {what}, and this cluster has at most {most}")


def _refusal(key: str, chosen: Sequence[str], fix: str) -> InvalidInput:
    return InvalidInput(field=wishes.path(key), value=", ".join(chosen)[:64], fix=fix)
