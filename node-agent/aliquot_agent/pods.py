# SPDX-License-Identifier: Apache-2.0
"""The pods of this node that hold claims: what the agent must know of them, kept by a watch.

While the server is away the last answer holds: containers that run do not change their names.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.errors import ApiError
from aliquot_agent.loops import Loop
from aliquot_api.names import ANNOTATION_MEMORY_LIMIT
from aliquot_api.reach import beyond_its_share

logger = logging.getLogger(__name__)

Object = dict[str, Any]

_WATCH_S: Final = 300
_PAUSE_S: Final = 0.2
"""Between two watches: a server may end each at once."""
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 10.0
_ASK_S: Final = 30.0
_DEFAULT_GRACE_S: Final = 30
_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_STATUSES: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One entry of a container's `resources.claims`."""

    claim: str
    """Name of the pod's entry in `spec.resourceClaims`."""
    request: str
    """Empty: all of the claim's."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What the agent knows of a pod."""

    uid: str
    namespace: str
    name: str
    memory_limit: str | None = None
    """Annotation aliquot.dev/gpu-memory-limit."""
    grace_s: int = _DEFAULT_GRACE_S
    containers: Mapping[str, tuple[Wanted, ...]] = field(default_factory=dict)
    """By container name; only those that hold claims."""
    container_names: Mapping[str, str] = field(default_factory=dict)
    """By container ID, as the runtime's own (64 hexadecimal digits); of all containers."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Name of the ResourceClaim by name of the pod's entry."""
    privilege: str = ""
    """What lets it reach beyond a share, and why; empty: nothing."""
    uids: Mapping[str, str] = field(default_factory=dict)
    """UID of the ResourceClaim by its name, as far as known: a pod names its claims, and names come again."""

    def holds(self, claim: PreparedClaim) -> bool:
        """Whether the pod holds this claim; of one whose UID is not known yet its name decides."""
        if self.namespace != claim.namespace or claim.name not in self.claims.values():
            return False
        return self.uids.get(claim.name, claim.uid) == claim.uid

    def containers_of(self, claim: PreparedClaim, share: PreparedShare) -> tuple[str, ...]:
        """The containers that were given this share of a claim that the pod holds."""
        entries = {entry for entry, name in self.claims.items() if name == claim.name}
        return tuple(
            container
            for container, wanted in self.containers.items()
            if any(each.claim in entries and each.request in ("", share.request) for each in wanted)
        )


def digest(
    pod: Mapping[str, Any], guarded: tuple[str, ...] = (), uids: Mapping[str, str] | None = None
) -> Pod | None:
    """What counts of a pod; None for one without claims. `guarded`: folders of ours on the host."""
    spec, status, metadata = pod["spec"], pod.get("status") or {}, pod["metadata"]
    entries = spec.get("resourceClaims") or []
    if not entries:
        return None
    claims = {str(each["name"]): str(each.get("resourceClaimName") or "") for each in entries}
    for each in status.get("resourceClaimStatuses") or []:
        claims[str(each["name"])] = str(each.get("resourceClaimName") or "")
    containers = {}
    for container in (each for key in _LISTS for each in spec.get(key) or []):
        wanted = (container.get("resources") or {}).get("claims") or []
        if wanted:
            containers[str(container["name"])] = tuple(
                Wanted(claim=str(each["name"]), request=str(each.get("request") or "").partition("/")[0])
                for each in wanted
            )
    ids = {}
    for each in (each for key in _STATUSES for each in status.get(key) or []):
        container_id = str(each.get("containerID") or "").rpartition("/")[2]
        if container_id:
            ids[container_id] = str(each["name"])
    grace_s = spec.get("terminationGracePeriodSeconds")
    return Pod(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        memory_limit=(metadata.get("annotations") or {}).get(ANNOTATION_MEMORY_LIMIT),
        grace_s=_DEFAULT_GRACE_S if grace_s is None else int(grace_s),
        containers=containers,
        container_names=ids,
        claims={entry: name for entry, name in claims.items() if name},
        privilege=privilege_of(pod, guarded),
        uids={} if uids is None else uids,
    )


def privilege_of(pod: Mapping[str, Any], guarded: tuple[str, ...]) -> str:
    """The first thing that lets a pod reach beyond a share; empty: nothing does."""
    problem = next(beyond_its_share(pod.get("spec") or {}, guarded), None)
    return "" if problem is None else str(problem)


class PodStream(Protocol):
    """One watch (kube.Watch)."""

    def follow(self, resource_version: str, *, timeout_s: int) -> Iterator[tuple[str, Object]]:
        """Pairs (ADDED | MODIFIED | DELETED, pod); raises ApiError."""

    def stop(self) -> None:
        """Ends it."""


class PodApi(Protocol):
    """Where pods are read (kube.Kube)."""

    def list_pods(self, node: str) -> tuple[list[Object], str]:
        """The pods of a node, and the resourceVersion to watch from."""

    def get_pod(self, namespace: str, name: str) -> Object:
        """A pod; raises ApiError."""

    def get_claim(self, namespace: str, name: str) -> Object:
        """A ResourceClaim; raises ApiError."""

    def pod_watch(self, node: str) -> PodStream:
        """A watch on them."""


class Pods:
    """The book of pods. `start`, then `stop`. Thread-safe."""

    def __init__(
        self,
        *,
        api: PodApi,
        node: str,
        guarded: tuple[str, ...] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._node = node
        self._guarded = guarded
        self._changed = changed
        self._pods: Mapping[str, Pod] = {}
        self._uids: dict[str, dict[str, str]] = {}
        """Of each pod's claims, by name; grows while readers have it."""
        self._names: dict[str, str] = {}
        """Of pods that claims are reserved for, by UID; what the watch has not shown yet is known by it."""
        self._asked: set[tuple[str, str]] = set()
        """Pods and names of claims that were asked for, whatever the answer: one that is gone stays gone."""
        self._events = api.pod_watch(node)
        self._delay_s = _RETRY_S
        self._loop = Loop(name="pod-watch", step=self._follow, period_s=0.0)
        self._asker = Loop(name="pod-claims", step=self.ask, period_s=_ASK_S)

    def start(self) -> None:
        """Begins to watch."""
        self._loop.start()
        self._asker.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._events.stop()
        self._loop.stop()
        self._asker.stop()

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID."""
        return self._pods.get(uid)

    def privilege(self, namespace: str, name: str, uid: str) -> str:
        """What lets a pod reach beyond a share; the pod is read where the watch has not shown it yet."""
        known = self._pods.get(uid)
        if known is not None:
            return known.privilege
        try:
            pod = self._api.get_pod(namespace, name)
        except ApiError as error:
            if error.status == 404:
                return ""
            raise
        return privilege_of(pod, self._guarded) if pod["metadata"].get("uid") == uid else ""

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        """The pods that hold a claim, by name."""
        found = [pod for pod in self._pods.values() if pod.holds(claim)]
        return tuple(sorted(found, key=lambda pod: pod.name))

    def awaited(self, claim: PreparedClaim) -> tuple[str, ...]:
        """Names of the pods that a claim is reserved for and that the watch has not shown yet."""
        names = {
            name
            for uid, name in list(self._names.items())
            if uid not in self._pods and self._uids.get(uid, {}).get(claim.name) == claim.uid
        }
        return tuple(sorted(names))

    def annotated(self) -> tuple[Pod, ...]:
        """The pods that wish a limit."""
        return tuple(pod for pod in self._pods.values() if pod.memory_limit is not None)

    def reaching_beyond(self) -> tuple[Pod, ...]:
        """The pods that reach beyond a share."""
        return tuple(pod for pod in self._pods.values() if pod.privilege)

    def get_claim(self, namespace: str, name: str) -> Object:
        """A ResourceClaim; takes note of who it is reserved for. Raises ApiError."""
        claim = self._api.get_claim(namespace, name)
        metadata = claim["metadata"]
        for holder in (claim.get("status") or {}).get("reservedFor") or []:
            if holder.get("resource") == "pods":
                self._uids_of(str(holder["uid"]))[name] = str(metadata["uid"])
                self._names[str(holder["uid"])] = str(holder["name"])
        return claim

    def ask(self) -> None:
        """Reads the claims of running pods that Prepare did not: a second pod's, or before a restart."""
        started = [pod for pod in self._pods.values() if pod.container_names]
        wanted = {(pod.uid, name): pod for pod in started for name in pod.claims.values()}
        self._asked &= wanted.keys()
        for (uid, name), pod in wanted.items():
            if name in pod.uids or (uid, name) in self._asked:
                continue
            try:
                self.get_claim(pod.namespace, name)
            except ApiError as error:
                if error.transient:
                    return  # another time
            self._asked.add((uid, name))

    def _uids_of(self, pod_uid: str) -> dict[str, str]:
        return self._uids.setdefault(pod_uid, {})

    def replace(self, pods: Iterable[Object]) -> None:
        """Takes a list as all there is."""
        found = (digest(pod, self._guarded, self._uids_of(str(pod["metadata"]["uid"]))) for pod in pods)
        self._pods = {pod.uid: pod for pod in found if pod is not None}
        for uid in self._uids.keys() - self._pods.keys():
            self._forget(uid)
        self._changed()
        self._asker.poke()

    def learn(self, kind: str, pod: Object) -> None:
        """Takes one event."""
        uid, known = str(pod["metadata"]["uid"]), None
        if kind != "DELETED":
            known = digest(pod, self._guarded, self._uids_of(uid))
        if known is None:
            self._forget(uid)
        if self._pods.get(uid) == known:
            return
        # Replaced, never changed: readers hold no lock.
        others = {key: each for key, each in self._pods.items() if key != uid}
        self._pods = others if known is None else {**others, uid: known}
        self._changed()

    def _forget(self, pod_uid: str) -> None:
        self._uids.pop(pod_uid, None)
        self._names.pop(pod_uid, None)

    def _follow(self) -> None:
        """One list, and watches until one fails."""
        try:
            listed, version = self._api.list_pods(self._node)
            self.replace(listed)
            self._delay_s = _RETRY_S
            while not self._loop.stopping:
                for kind, pod in self._events.follow(version, timeout_s=_WATCH_S):
                    version = str(pod["metadata"]["resourceVersion"])
                    self.learn(kind, pod)
                self._loop.pause(_PAUSE_S)
        except ApiError as error:
            if not self._loop.stopping and error.status != 410:
                logger.warning("pods cannot be watched", extra={"error": str(error)})
            self._loop.pause(self._delay_s)
            self._delay_s = min(2 * self._delay_s, _LONGEST_RETRY_S)
