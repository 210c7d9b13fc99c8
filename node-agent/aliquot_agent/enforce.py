# SPDX-License-Identifier: Apache-2.0
"""What happens to a share above its quota: `warn`, `kill` or `evict`, from the second observation in a row.

- `warn`: an event on the pod and a count.
- `kill`: the offenders alone (`books.offenders`): SIGTERM, and SIGKILL to what is still there half a second
  later.
- `evict`: the pod's eviction is asked for at once; its offenders are killed after the pod's grace, also
  where a disruption budget forbids the eviction. Where node configuration says `respectBudgets: false`
  the pod is deleted then.

A single look may catch a process that is ending, whose memory the driver gives back in a moment.
"""

import logging
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aliquot_agent import books, processes
from aliquot_agent.books import Books, Holder
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.errors import ApiError
from aliquot_agent.executioner import Target
from aliquot_agent.loops import Loop
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.pods import Pod
from aliquot_api import config
from aliquot_api.config import OverQuota
from aliquot_api.quantity import MIB

logger = logging.getLogger(__name__)

_LOOKS: Final = 2
_TERM_S: Final = 0.5
"""Between SIGTERM and SIGKILL."""
_LONGEST_GRACE_S: Final = 30
"""A pod that asks for more does not keep others' memory for longer."""
_WARN_AGAIN_LOOKS: Final = 60
_TRIES: Final = 5
_AGAIN_S: Final = 1.0
_WAITING: Final = 256

EVENT: Final = "GPUMemoryOverQuota"


class PodEvents(Protocol):
    """Where people are told (events.Events)."""

    def pod(
        self, *, namespace: str, name: str, uid: str, reason: str, message: str, warning: bool = True
    ) -> None:
        """Says something about a pod."""


class EvictionApi(Protocol):
    """Where evictions are asked for (kube.Kube)."""

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evicts exactly this pod; raises ApiError."""

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Deletes exactly this pod, whatever its disruption budget says; raises ApiError."""


class Killer(Protocol):
    """What ends processes (executioner.Executioner)."""

    def end(self, target: Target, *, grace_s: float, ask: bool = True) -> bool:
        """Ends a process."""

    def condemned(self, target: Target) -> bool:
        """Whether the end of a process is under way."""


def policy_of(share: PreparedShare, *, node: NodePolicy, namespace: str) -> OverQuota:
    """A share's policy: its class's, else its namespace's, else the node's; a claim makes it stricter."""
    default = node.over_quota(namespace)
    return config.in_force(default, by_class=share.class_over_quota, by_claim=share.claim_over_quota)


@dataclass(slots=True)
class Record:
    """One share over time."""

    looks: int = 0
    """In a row above the quota."""
    warned: int = 0
    killed: int = 0
    evicted: int = 0
    message: str = ""
    """What was last seen and done."""


@dataclass(frozen=True, slots=True)
class _Eviction:
    pod: Pod
    message: str


class Enforcer:
    """Judges shares as the watcher sees them; evicts by a thread of its own. `start`, then `stop`."""

    def __init__(
        self,
        *,
        killer: Killer,
        api: EvictionApi,
        events: PodEvents,
        policy: Callable[[], NodePolicy],
    ) -> None:
        self._killer = killer
        self._api = api
        self._events = events
        self._policy = policy
        self._evictions: queue.Queue[_Eviction] = queue.Queue(maxsize=_WAITING)
        self._asked: set[str] = set()
        self._loop = Loop(name="evictor", step=self.evict_waiting, period_s=5.0)

    def start(self) -> None:
        """Begins to evict."""
        self._loop.start()

    def stop(self) -> None:
        """Ends; an offender whose eviction was not asked for is found again by the next agent."""
        self._loop.stop()

    def judge(
        self,
        record: Record,
        *,
        claim: PreparedClaim,
        share: PreparedShare,
        limit_bytes: int,
        holders: Sequence[Holder],
        found: Books,
        pod: Callable[[Sequence[Holder]], Pod | None],
    ) -> bool:
        """Notes one look at a share and acts when it is due; whether the share is above its quota."""
        policy = self._policy()
        excess_bytes = found.measured_bytes - limit_bytes
        if excess_bytes <= policy.tolerance_bytes:
            record.looks = 0
            return False
        record.looks += 1
        if record.looks < _LOOKS:
            return False
        blamed = books.offenders(holders, found)
        wanted = policy_of(share, node=policy, namespace=claim.namespace)
        record.message = (
            f"request {share.request} of claim {claim.name} holds {found.measured_bytes // MIB}Mi of GPU "
            f"memory and may hold {limit_bytes // MIB}Mi: {_names(blamed, found)}"
        )
        if share.growth is Growth.LEAVING and wanted is OverQuota.WARN:
            wanted = OverQuota.KILL  # the memory is another claim's: it was given on this condition
        whose = pod(blamed)
        if wanted is OverQuota.WARN:
            self._warn(record, whose)
        elif wanted is OverQuota.EVICT and whose is not None:
            self._evict(record, whose, blamed)
        else:
            self._kill(record, whose, blamed)
        return True

    def _warn(self, record: Record, pod: Pod | None) -> None:
        if (record.looks - _LOOKS) % _WARN_AGAIN_LOOKS == 0:
            record.warned += 1
            self._tell(pod, f"{record.message}; nothing is done (overQuota: warn)")

    def _kill(self, record: Record, pod: Pod | None, blamed: Sequence[Holder]) -> None:
        fresh = [target for target in map(_target, blamed) if not self._killer.condemned(target)]
        ended = [target for target in fresh if self._killer.end(target, grace_s=_TERM_S)]
        if ended:
            record.killed += len(ended)
            record.message += "; killed"
            self._tell(pod, record.message)

    def _evict(self, record: Record, pod: Pod, blamed: Sequence[Holder]) -> None:
        grace_s = min(pod.grace_s, _LONGEST_GRACE_S)
        fresh = [target for target in map(_target, blamed) if not self._killer.condemned(target)]
        for target in fresh:
            self._killer.end(target, grace_s=grace_s, ask=False)
        if fresh and pod.uid not in self._asked:
            self._asked.add(pod.uid)
            record.evicted += 1
            record.message += f"; the pod is evicted, and the offender killed after {grace_s}s"
            self._tell(pod, record.message)
            try:
                self._evictions.put_nowait(_Eviction(pod, record.message))
            except queue.Full:
                self._asked.discard(pod.uid)
                logger.warning("eviction dropped, the offender is killed all the same")
            self._loop.poke()

    def evict_waiting(self) -> None:
        """Asks for the evictions that wait."""
        while not self._loop.stopping:
            try:
                eviction = self._evictions.get_nowait()
            except queue.Empty:
                return
            self._evict_one(eviction.pod)
            self._asked.discard(eviction.pod.uid)

    def _evict_one(self, pod: Pod) -> None:
        extra = {"pod": f"{pod.namespace}/{pod.name}", "pod_uid": pod.uid}
        for _ in range(_TRIES):
            try:
                self._api.evict(pod.namespace, pod.name, pod.uid)
                logger.warning("pod evicted for too much GPU memory", extra=extra)
                return
            except ApiError as error:
                if error.status in (404, 409):  # gone, or another pod has its name now
                    return
                if error.status == 429 and not self._policy().respect_budgets:
                    self._delete(pod)
                    return
                if error.status == 429 or not error.transient:
                    logger.warning("eviction refused", extra={**extra, "error": str(error)})
                    what = "its disruption budget forbids it" if error.status == 429 else str(error)
                    self._tell(pod, f"the pod cannot be evicted: {what}; the offender alone is killed")
                    return
                logger.warning("evicting again", extra={**extra, "error": str(error)})
            if self._loop.pause(_AGAIN_S):
                return

    def _delete(self, pod: Pod) -> None:
        try:
            self._api.delete_pod(pod.namespace, pod.name, pod.uid)
        except ApiError as error:
            if error.status != 404:
                self._tell(pod, f"the pod cannot be deleted: {error}; the offender alone is killed")

    def _tell(self, pod: Pod | None, message: str) -> None:
        logger.warning("share above its quota", extra={"what": message, "pod": pod.name if pod else "?"})
        if pod is not None:
            self._events.pod(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, reason=EVENT, message=message
            )


def _target(holder: Holder) -> Target:
    return Target(host_pid=holder.host_pid, start_ticks=holder.start_ticks)


def _names(blamed: Sequence[Holder], found: Books) -> str:
    """The offenders in words."""
    if not blamed:
        return "no process of it is left"
    if blamed[0] in found.bypassing:
        why = "outside the library that counts"
    elif blamed[0] in found.unexplained:
        why = "more than it counted"
    else:
        why = "the most of its processes"
    names = ", ".join(
        f"process {each.host_pid} ({processes.command(each.host_pid)}) with {(each.held_bytes or 0) // MIB}Mi"
        for each in blamed[:5]
    )
    return f"{names}, {why}"
