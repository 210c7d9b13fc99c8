# SPDX-License-Identifier: Apache-2.0
"""Keeps this node's ResourceSlice on the server as it should be, level-triggered.

One thread watches our slices, one compares and writes. Kubelet deletes them at its start and 30 s after
it lost us: the watch sees it and the slice is made anew. Nothing is written while nothing differs.

Before the first write, and after every outage, a dry run shows whether the server keeps our fields. Where
it drops them (feature gate off), a share would silently become a whole GPU, so the slice stays empty. Where
it drops taints only (1.35), sick GPUs leave the slice instead.

A writer that changes our slice again and again is answered ever more rarely, and named in the log.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from aliquot_agent import slices
from aliquot_agent.devices import Device, Taint
from aliquot_agent.errors import ApiError
from aliquot_agent.health import TAINT_KEY
from aliquot_agent.kube import Watch
from aliquot_agent.readiness import Readiness
from aliquot_api import quantity
from aliquot_api.names import CAPACITY_MEMORY, CONSUMABLE_CAPACITY_GATE

logger = logging.getLogger(__name__)

Object = dict[str, Any]

READINESS: Final = "slices"
_OLDEST_MINOR: Final = 35
_WATCH_S: Final = 300
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 60.0
"""Between two writes while the server stores something else than what we send."""
_RESYNC_S: Final = 60.0
_PEACE_S: Final = 60.0
"""Without a write: conflicts before it are forgotten."""
_TOLD_CONFLICTS: Final = 3
_MOST_CONFLICTS: Final = 6
_PROBE_TAINT: Final[Taint] = {
    "key": TAINT_KEY,
    "value": "probe",
    "effect": "NoSchedule",
    "timeAdded": "2020-01-01T00:00:00Z",
}


class SliceApi(Protocol):
    """What the publisher asks of the API server (kube.Kube)."""

    def server_minor(self) -> int:
        """37 for Kubernetes 1.37."""

    def get_node(self, name: str) -> Object:
        """The Node object."""

    def list_slices(self, node: str) -> tuple[list[Object], str]:
        """Our slices of a node, and the resourceVersion to watch from."""

    def create_slice(self, body: Object, *, dry_run: bool = False) -> Object:
        """Creates a slice; answers it as stored."""

    def replace_slice(self, body: Object) -> Object:
        """Replaces a slice."""

    def delete_slice(self, slice_: Object) -> None:
        """Deletes a slice."""

    def slice_watch(self, node: str) -> Watch:
        """A watch on our slices."""


class Publisher:
    """Publishes what `devices` answers. `start`, then `stop`."""

    def __init__(
        self,
        *,
        api: SliceApi,
        node: str,
        devices: Callable[[], Sequence[Device]],
        readiness: Readiness,
    ) -> None:
        self._api = api
        self._node = node
        self._devices = devices
        self._readiness = readiness
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._known: dict[str, Object] | None = None  # None until listed
        self._last_end = 0  # version at which the last slice was deleted
        self._probed = False
        self._refusal: str | None = None  # why the server cannot hold shares; valid once probed
        self._keeps_taints = True  # valid once probed
        self._kept = True
        self._wanted: Sequence[Device] | None = None  # what was written last
        self._conflicts = 0
        self._settled_s = 0.0  # since when nothing had to be written
        self._counts: dict[str, int] = dict.fromkeys(("create", "replace", "delete", "failed"), 0)
        self._events = api.slice_watch(node)
        self._threads = [
            threading.Thread(target=self._watch_loop, name="slice-watch"),
            threading.Thread(target=self._publish_loop, name="slice-publish"),
        ]

    def start(self) -> None:
        """Begins to watch and publish."""
        self._readiness.refuse(READINESS, "nothing published yet")
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends both threads; the slice stays, kubelet removes it when we do not come back."""
        self._stop.set()
        self._wake.set()
        self._events.stop()
        for thread in self._threads:
            thread.join()

    def counts(self) -> dict[str, int]:
        """Writes by kind, and attempts that failed."""
        return dict(self._counts)

    def offered_bytes(self) -> dict[str, int]:
        """Memory that the slice shows, by device name, as written last."""
        memory = {
            device["name"]: device["capacity"][CAPACITY_MEMORY]["value"] for device in self._wanted or ()
        }
        return {name: quantity.parse(value, field=name) for name, value in memory.items()}

    def poke(self) -> None:
        """Something about the devices changed."""
        self._wake.set()

    def _watch_loop(self) -> None:
        delay_s = _RETRY_S
        while not self._stop.is_set():
            try:
                listed, version = self._api.list_slices(self._node)
                with self._lock:
                    self._known = {slice_["metadata"]["name"]: slice_ for slice_ in listed}
                    self._last_end = 0  # versions begin anew where a server was restored
                    self._probed = False  # the server may have been replaced meanwhile
                self._wake.set()
                delay_s = _RETRY_S
                while not self._stop.is_set():
                    version = self._follow(version)
            except ApiError as error:
                if not self._stop.is_set():
                    logger.warning("slices cannot be watched", extra={"error": str(error)})
                self._stop.wait(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    def _follow(self, version: str) -> str:
        for kind, slice_ in self._events.follow(version, timeout_s=_WATCH_S):
            version = str(slice_["metadata"]["resourceVersion"])
            self._learn(slice_, deleted=kind == "DELETED")
            self._wake.set()
        return version

    def _learn(self, slice_: Object, *, deleted: bool) -> None:
        """Takes a slice as the server has it, unless we know a newer version or its end.

        The answer to a write of ours may be older than what the watch has shown meanwhile.
        """
        name, version = slice_["metadata"]["name"], _version(slice_)
        with self._lock:
            known = self._known if self._known is not None else {}
            if name in known and _version(known[name]) > version:
                return
            if deleted:
                known.pop(name, None)
                self._last_end = max(self._last_end, version)
            elif name in known or version > self._last_end:
                known[name] = slice_
            self._known = known

    def _publish_loop(self) -> None:
        pause_s = _RETRY_S
        while not self._stop.is_set():
            self._wake.wait(_RESYNC_S)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                kept = self.publish()
            except ApiError as error:
                self._counts["failed"] += 1
                self._readiness.refuse(READINESS, str(error))
                logger.warning("publishing failed, will retry", extra={"error": str(error)})
                self._stop.wait(_RETRY_S)
                self._wake.set()
                continue
            pause_s = _RETRY_S if kept else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._stop.wait(max(pause_s, min(2.0**self._conflicts, _LONGEST_PAUSE_S)))

    def publish(self) -> bool:
        """Compares once and writes what differs; whether the server keeps what we send. Raises ApiError."""
        with self._lock:
            known = None if self._known is None else list(self._known.values())
        if known is None:
            return True
        node_uid = str(self._api.get_node(self._node)["metadata"]["uid"])
        devices = list(self._devices())
        refusal = self._server_refusal(devices, node_uid=node_uid) if devices else None
        if refusal is not None:
            devices = []
        elif not self._keeps_taints:
            devices = [device for device in devices if not device.get("taints")]
        plan = slices.plan(known, node=self._node, node_uid=node_uid, devices=devices)
        for obsolete in plan.delete:
            self._api.delete_slice(obsolete)
            self._counts["delete"] += 1
            self._learn(obsolete, deleted=True)
        written = None
        if plan.replace is not None:
            self._count_conflict(devices, plan.replace)
            written = self._api.replace_slice(plan.replace)
            self._counts["replace"] += 1
        elif plan.create is not None:
            written = self._api.create_slice(plan.create)
            self._counts["create"] += 1
        elif time.monotonic() - self._settled_s > _PEACE_S:
            self._conflicts = 0
        kept = True
        if written is not None:
            stored = slices.plan([written], node=self._node, node_uid=node_uid, devices=devices)
            kept = stored.replace is None
            self._settled_s = time.monotonic()
            self._learn(written, deleted=False)
            logger.info(
                "published slice", extra={"devices": len(devices), "slice": written["metadata"]["name"]}
            )
        self._wanted = devices
        if refusal is None:
            self._readiness.allow(READINESS)
        else:
            self._readiness.refuse(READINESS, refusal)
        if self._kept and not kept:
            logger.error("the server stores another slice than we send; does a policy change it?")
        self._kept = kept
        return kept

    def _count_conflict(self, devices: Sequence[Device], replacing: Object) -> None:
        """Notes that somebody else changed what we wrote: it differs, and we want what we wanted before."""
        if devices != self._wanted or not self._kept:
            return
        self._conflicts = min(self._conflicts + 1, _MOST_CONFLICTS)
        if self._conflicts == _TOLD_CONFLICTS:
            extra = {"slice": replacing["metadata"]["name"]}
            logger.error("somebody else keeps changing our slice: who writes it?", extra=extra)

    def _server_refusal(self, devices: Sequence[Device], *, node_uid: str) -> str | None:
        """Why the server cannot hold shares, None when it can; asked anew after each broken watch."""
        with self._lock:
            probed = self._probed
        if not probed:
            self._refusal = self._probe(devices, node_uid=node_uid)
            with self._lock:
                self._probed = True
        return self._refusal

    def _probe(self, devices: Sequence[Device], *, node_uid: str) -> str | None:
        minor = self._api.server_minor()
        if minor < _OLDEST_MINOR:
            return f"Kubernetes 1.{minor} is too old: shares need 1.{_OLDEST_MINOR} or newer"
        first: Device = {**devices[0], "taints": [_PROBE_TAINT]}
        tainted = [first, *devices[1:]]
        sent = slices.build(node=self._node, node_uid=node_uid, devices=tainted, generation=1)
        stored = self._api.create_slice(sent, dry_run=True)
        missing = list(slices.dropped_fields(sent["spec"], stored["spec"]))
        dropped = [path for path in missing if ".taints" not in path]
        keeps_taints = len(dropped) == len(missing)
        if self._keeps_taints and not keeps_taints:
            logger.warning("server drops taints: sick GPUs leave the slice instead")
        self._keeps_taints = keeps_taints
        if not dropped:
            return None
        logger.error("server drops our fields, publishing nothing", extra={"dropped": dropped[:5]})
        return (
            f"the API server dropped {dropped[0]} and {len(dropped) - 1} fields more: enable feature gate "
            f"{CONSUMABLE_CAPACITY_GATE} on kube-apiserver, kube-scheduler and kubelet; "
            "until then nothing shareable is published"
        )


def _version(slice_: Object) -> int:
    return int(slice_["metadata"]["resourceVersion"])
