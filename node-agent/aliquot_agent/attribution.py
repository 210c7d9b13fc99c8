# SPDX-License-Identifier: Apache-2.0
"""Which share a process on a GPU belongs to: by its mounts, else by its container, whatever it did to either.

Anyone can write anyone's identity into a ledger of their own, so a ledger decides nothing here. Our mounts
cannot be forged, but a process can leave them (a nested mount namespace, a container in the container);
it cannot leave its cgroup, which names the container that was given the share.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aliquot_agent import processes
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.pods import Pod
from aliquot_agent.processes import Place

Candidate = tuple[PreparedClaim, PreparedShare]
Key = tuple[str, str]
"""Claim UID and share."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU; the start tells it from the next one with its pid."""

    gpu_uuid: str
    host_pid: int
    start_ticks: int


class PodBook(Protocol):
    """The pods of this node (pods.Pods)."""

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID."""


def attribute(
    *,
    mounted: frozenset[str],
    places: Callable[[], Sequence[Place]],
    pods: PodBook,
    candidates: Iterable[Candidate],
) -> Candidate | None:
    """The one of `candidates`, the shares of a GPU, that a process uses; None for a process outside them."""
    here = list(candidates)
    by_mount = [each for each in here if each[1].share in mounted]
    if by_mount:
        return by_mount[0]  # one container cannot hold two shares of one GPU
    whole = [each for each in here if each[1].whole]
    if whole:
        return whole[0]  # nobody else can be there
    for place in places():
        pod = pods.by_uid(place.pod_uid)
        if pod is not None:
            return _by_container(pod, place, here)
    return None


def _by_container(pod: Pod, place: Place, candidates: Sequence[Candidate]) -> Candidate | None:
    held = [each for each in candidates if pod.holds(each[0])]
    name = pod.container_names.get(place.container_id)
    if name is not None:
        held = [each for each in held if name in pod.containers_of(*each)]
    # A container that just started may not be in the pod's status yet: with several shares, wait for it.
    return held[0] if len(held) == 1 else None


class Owners:
    """Whose process is whose, remembered while it lives: what it was once, it stays."""

    def __init__(
        self, *, mounted: Callable[[int], frozenset[str]], pods: PodBook, proc: Path = Path("/proc")
    ) -> None:
        self._mounted = mounted
        self._pods = pods
        self._proc = proc
        self._known: dict[Process, Key] = {}
        self._met: set[Process] = set()

    def begin(self) -> None:
        """A new look: processes that it does not meet are forgotten at its end."""
        self._met = set()

    def end(self) -> None:
        """The look is over."""
        self._known = {process: key for process, key in self._known.items() if process in self._met}

    def owner(self, process: Process, candidates: Mapping[Key, Candidate]) -> Key | None:
        """The one of `candidates`, the shares of its GPU, that a process uses; None: it is outside them."""
        self._met.add(process)
        known = self._known.get(process)
        if known in candidates:
            return known
        found = attribute(
            mounted=self._mounted(process.host_pid),
            places=lambda: processes.places(process.host_pid, proc=self._proc),
            pods=self._pods,
            candidates=candidates.values(),
        )
        if found is None:
            return None
        key = self._known[process] = (found[0].uid, found[1].share)
        return key
