# SPDX-License-Identifier: Apache-2.0
"""What a pod's annotations ask for: HAMi's and our own, read and checked.

The values of HAMi's keys mean what they mean there; what is accepted but means something else is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot_api import annotations as api
from aliquot_api import config, modes, names
from aliquot_api.config import ComputePolicy, ShareConfig, Sharing
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode
from aliquot_api.wire import JsonObject, text
from aliquot_webhook.requests import Stated

USE_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOUSE_UUID: Final = "nvidia.com/nouse-gpuuuid"
USE_INDEX: Final = "nvidia.com/use-gpuindexes"
NOUSE_INDEX: Final = "nvidia.com/nouse-gpuindexes"
NUMA_BIND: Final = "nvidia.com/numa-bind"
MODE: Final = "nvidia.com/vgpu-mode"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
WEIGHTS: Final = "hami.io/device-scoring-weights"
VULKAN: Final = "hami.io/vulkan"
_ALIGNMENTS: Final = (
    names.ANNOTATION_SAME_GPU,
    names.ANNOTATION_SPREAD_GPUS,
    names.ANNOTATION_NUMA_ALIGN,
    names.ANNOTATION_PCIE_ALIGN,
)
KEYS: Final = frozenset(
    {
        *(USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID, USE_INDEX, NOUSE_INDEX, NUMA_BIND, MODE),
        *(NODE_POLICY, GPU_POLICY, WEIGHTS, VULKAN, names.ANNOTATION_MEMORY_LIMIT, names.ANNOTATION_CORES),
        *(names.ANNOTATION_GPU_TYPES, names.ANNOTATION_SHARING, names.ANNOTATION_COMPUTE_POLICY),
        *_ALIGNMENTS,
    }
)
_MAX_WORDS: Final = 64
_TRUE: Final = ("true", "t", "1")
_FALSE: Final = ("", "false", "f", "0")
_MODES: Final = {"hami-core": modes.SHIM, "mps": modes.MPS}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which GPUs will do. Words are in lower case, in the author's order."""

    sharing: Mode = modes.SHIM
    types: tuple[str, ...] = ()
    not_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    not_indexes: tuple[int, ...] = ()
    preferred: tuple[str, ...] = ()
    """Types in order of preference; "*" is any."""


ANY: Final = Choice()


@dataclass(frozen=True, slots=True)
class Wishes:
    """Everything that annotations say about a pod's GPUs."""

    choice: Choice = ANY
    exclusive: bool = False
    """Cards for each container alone."""
    alone: bool = False
    """Only cards that nobody uses, and nobody else afterwards."""
    compute_policy: ComputePolicy | None = None
    memory: Mapping[str, tuple[Stated, int]] = field(default_factory=dict)
    """Bytes per GPU, by container."""
    cores: Mapping[str, tuple[Stated, int]] = field(default_factory=dict)
    same_gpu: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    numa: tuple[str, ...] = ()
    pcie: tuple[str, ...] = ()
    numa_bind: bool = False
    """The GPUs of each container on one NUMA node, of different containers on any."""
    warnings: tuple[str, ...] = ()


NONE: Final = Wishes()


def read(annotations: JsonObject, containers: Sequence[str]) -> Wishes:
    """The wishes of a pod whose GPU containers are `containers`. Raises InvalidInput."""
    if KEYS.isdisjoint(annotations):
        return NONE
    given = {key: text(annotations[key]) for key in KEYS & annotations.keys()}
    sharing, exclusive = _sharing(given)
    choice = Choice(
        sharing=sharing,
        types=_words(given, USE_TYPE),
        not_types=_words(given, NOUSE_TYPE),
        uuids=_words(given, USE_UUID),
        not_uuids=_words(given, NOUSE_UUID),
        indexes=_numbers(given, USE_INDEX),
        not_indexes=_numbers(given, NOUSE_INDEX),
        preferred=tuple(dict.fromkeys(_words(given, names.ANNOTATION_GPU_TYPES))),
    )
    same, spread, numa, pcie = (
        api.chosen_containers(given[key], field=path(key), containers=containers) if key in given else ()
        for key in _ALIGNMENTS
    )
    both = sorted(set(same) & set(spread)) if len(same) > 1 and len(spread) > 1 else ()
    if len(both) > 1:
        raise InvalidInput(
            field=path(names.ANNOTATION_SPREAD_GPUS),
            value=given[names.ANNOTATION_SPREAD_GPUS],
            fix=f"{names.ANNOTATION_SAME_GPU} wants {' and '.join(both)} on one GPU; keep one of the two",
        )
    return Wishes(
        choice=choice,
        exclusive=exclusive,
        alone="mutex" in _policies(given),
        compute_policy=_compute_policy(given, Sharing.EXCLUSIVE if exclusive else sharing.sharing),
        memory=_by_container(given, names.ANNOTATION_MEMORY_LIMIT, containers),
        cores=_by_container(given, names.ANNOTATION_CORES, containers),
        same_gpu=same,
        spread=spread,
        numa=numa,
        pcie=pcie,
        numa_bind=_is_true(given, NUMA_BIND),
        warnings=tuple(_warnings(given)),
    )


def path(key: str) -> str:
    """Where an annotation stands."""
    return f"metadata.annotations[{key}]"


def _words(given: Mapping[str, str], key: str) -> tuple[str, ...]:
    words = tuple(word for part in given.get(key, "").split(",") if (word := part.strip().lower()))
    if len(words) > _MAX_WORDS:
        raise InvalidInput(field=path(key), value=f"{len(words)} entries", fix=f"want at most {_MAX_WORDS}")
    return words


def _numbers(given: Mapping[str, str], key: str) -> tuple[int, ...]:
    for word in _words(given, key):
        if not (word.isascii() and word.isdecimal() and len(word) <= 3):
            raise InvalidInput(field=path(key), value=word, fix="want indexes of GPUs such as 0,1")
    return tuple(int(word) for word in _words(given, key))


def _is_true(given: Mapping[str, str], key: str) -> bool:
    value = given.get(key, "").strip().lower()
    if value not in _TRUE and value not in _FALSE:
        raise InvalidInput(field=path(key), value=given[key][:64], fix="want true or false")
    return value in _TRUE


def _by_container(
    given: Mapping[str, str], key: str, containers: Sequence[str]
) -> Mapping[str, tuple[Stated, int]]:
    if key not in given:
        return {}
    read_values = api.memory_limits if key == names.ANNOTATION_MEMORY_LIMIT else api.cores_limits
    stated = Stated(value=given[key][:64], field=path(key))
    values = read_values(given[key], field=path(key), containers=containers)
    return {container: (stated, value) for container, value in values.items()}


def _sharing(given: Mapping[str, str]) -> tuple[Mode, bool]:
    """The mode of the cards, and whether each container wants its own."""
    by_mode = _mode(given)
    word = given.get(names.ANNOTATION_SHARING, "")
    if not word.strip():
        return by_mode or modes.SHIM, False
    mode = modes.parse(word, field=path(names.ANNOTATION_SHARING))
    if mode == modes.EXCLUSIVE:
        return by_mode or modes.SHIM, True
    if by_mode and mode != by_mode:
        raise InvalidInput(
            field=path(names.ANNOTATION_SHARING),
            value=str(mode),
            fix=f"{MODE} says {given[MODE]}; keep one of the two",
        )
    return mode, False


def _compute_policy(given: Mapping[str, str], sharing: Sharing) -> ComputePolicy | None:
    key = names.ANNOTATION_COMPUTE_POLICY
    if key not in given:
        return None
    word = given[key].strip().lower()
    if word not in tuple(ComputePolicy):
        fix = f"want one of {', '.join(ComputePolicy)}"
        raise InvalidInput(field=path(key), value=given[key][:64], fix=fix)
    wish = ShareConfig(sharing=sharing, compute_policy=ComputePolicy(word))
    try:
        config.consistent(wish, field="metadata.annotations")
    except InvalidInput as error:
        raise InvalidInput(field=path(key), value=word, fix=error.fix) from error
    return wish.compute_policy


def _mode(given: Mapping[str, str]) -> Mode | None:
    """HAMi's mode of a card: its annotation may list several, and ours are tried in this order."""
    words = _words(given, MODE)
    for word, sharing in _MODES.items():
        if word in words:
            return sharing
    if "mig" in words:
        raise InvalidInput(
            field=path(MODE),
            value=given[MODE][:64],
            fix="the webhook does not choose MIG partitions yet; remove the annotation to get a share of a"
            " whole GPU, or write a ResourceClaim of the partition's class",
        )
    if words:
        fix = f"want one of {', '.join(_MODES)}"
        raise InvalidInput(field=path(MODE), value=given[MODE][:64], fix=fix)
    return None


def _policies(given: Mapping[str, str]) -> tuple[str, ...]:
    return _words(given, GPU_POLICY)


def _warnings(given: Mapping[str, str]) -> Iterator[str]:
    for key, known in (
        (NODE_POLICY, ("binpack", "spread")),
        (GPU_POLICY, ("binpack", "spread", "topology-aware", "numa", "mutex")),
    ):
        words = _words(given, key)
        unknown = [word for word in words if word not in known]
        if unknown:
            yield f"{key}: {', '.join(unknown)[:64]} is unknown and ignored; known are {', '.join(known)}"
    if set(_words(given, NODE_POLICY)) & {"binpack", "spread"}:
        yield (
            f"{NODE_POLICY} has no effect: kube-scheduler chooses the node; a scheduler profile, pod affinity"
            " or topologySpreadConstraints say how"
        )
    if set(_policies(given)) & {"binpack", "spread"}:
        yield f"{GPU_POLICY}: binpack and spread have no effect: the first GPU with room is taken"
    if set(_policies(given)) & {"topology-aware", "numa"}:
        yield (
            f"{GPU_POLICY}: topology-aware and numa have no effect as a preference; to require it use"
            f" {names.ANNOTATION_NUMA_ALIGN} or {names.ANNOTATION_PCIE_ALIGN}"
        )
    if WEIGHTS in given:
        yield f"{WEIGHTS} has no effect: Aliquot does not score GPUs"
    if VULKAN in given:
        yield f"{VULKAN} has no effect: memory that Vulkan takes is seen by the node agent only"
    if USE_INDEX in given or NOUSE_INDEX in given:
        yield f"{USE_INDEX} and {NOUSE_INDEX} are compared with the device's minor number"
