# SPDX-License-Identifier: Apache-2.0
"""Watches the health of all GPUs: one thread waits for NVML's events, one takes samples and judges.

What is known outlives the agent in a file, for this boot: an XID is said once, and a restart must not forget
it. A reboot is a reset, so the file of another boot counts for nothing.
"""

import dataclasses
import json
import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from aliquot_agent import devices, files, health
from aliquot_agent.devices import Taint
from aliquot_agent.errors import NvmlError
from aliquot_agent.health import Condition, Fault, Sample
from aliquot_agent.loops import Loop
from aliquot_agent.marks import Mark, now_text
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import Gpu, Nvml, Xid, XidEvents

logger = logging.getLogger(__name__)

REASON_SICK: Final = "GpuUnhealthy"
REASON_WELL: Final = "GpuRecovered"
_VERSION: Final = 1
_PERIOD_S: Final = 1.0
_EVENT_WAIT_MS: Final = 1000
_REOPEN_S: Final = 2.0
_REASONS: Final[Mapping[Fault | None, str]] = {
    None: "NoFault",
    Fault.XID: "XidReported",
    Fault.ECC: "EccErrors",
    Fault.LOST: "GpuLost",
}


class GpuSource(Protocol):
    """The GPUs of the node (hardware.Hardware)."""

    @property
    def nvml(self) -> Nvml | None:
        """The open NVML."""

    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs by device name."""


class HealthWatch:
    """Conditions by GPU UUID. `start`, then `stop`; `conditions` and `taints` at any time."""

    def __init__(
        self,
        *,
        gpus: GpuSource,
        policy: Callable[[], NodePolicy],
        path: Path,
        boot_id: str,
        calm_s: float,
        changed: Callable[[], None],
        tell: Callable[[str, str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = gpus
        self._policy = policy
        self._path = path
        self._boot_id = boot_id
        self._calm_s = calm_s
        self._changed = changed
        self._tell = tell
        self._monotonic_s = monotonic_s
        self._conditions: dict[str, Condition] = {}
        self._began = now_text()
        self._well_since: dict[str, str] = {}
        self._stored = ""
        self._xids: queue.SimpleQueue[Xid] = queue.SimpleQueue()
        self._events: XidEvents | None = None
        self._events_made_s = 0.0
        self._loops = (
            Loop(name="gpu-events", step=self.listen, period_s=0.0),
            Loop(name="gpu-health", step=self.look, period_s=_PERIOD_S),
        )

    def start(self) -> None:
        """Takes what the last agent knew, and begins."""
        self.load()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Ends both threads."""
        for loop in self._loops:
            loop.stop()
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def conditions(self) -> Mapping[str, Condition]:
        """By GPU UUID, as judged last."""
        return self._conditions

    def taints(self) -> dict[str, Taint]:
        """Of sick GPUs, by device name."""
        effect = self._policy().health.effect
        found = {
            devices.device_name(uuid): health.taint(condition, effect=effect)
            for uuid, condition in self._conditions.items()
        }
        return {device: taint for device, taint in found.items() if taint is not None}

    def mark(self, gpu_uuid: str) -> Mark:
        """Condition `Healthy` of a GPU."""
        condition = self._conditions.get(gpu_uuid, Condition())
        since = condition.since or self._well_since.get(gpu_uuid, self._began)
        return Mark("Healthy", condition.healthy, _REASONS[condition.fault], health.explain(condition), since)

    def load(self) -> None:
        """Takes what the last agent knew."""
        self._conditions = self._read()

    def look(self) -> None:
        """One sample of each GPU, and what follows."""
        xids: dict[str, list[int]] = {}
        while True:
            try:
                xid = self._xids.get_nowait()
            except queue.Empty:
                break
            logger.warning("XID", extra={"gpu": xid.gpu_uuid, "code": xid.code})
            xids.setdefault(xid.gpu_uuid, []).append(xid.code)
        nvml = self._gpus.nvml
        policy = self._policy().health
        now = now_text()
        after: dict[str, Condition] = {}
        for gpu in self._gpus.by_device().values():
            sample = self._sample(nvml, gpu, xids.get(gpu.uuid, ()))
            after[gpu.uuid] = health.judge(
                self._conditions.get(gpu.uuid, Condition()),
                sample,
                ignored_xids=policy.ignored_xids,
                calm_s=self._calm_s,
                now_s=self._monotonic_s(),
                now=now,
            )
        # A GPU that NVML does not show at this moment keeps what was known of it.
        before, self._conditions = self._conditions, self._conditions | after
        self._save()
        if any(self._news(uuid, before.get(uuid, Condition()), now_is) for uuid, now_is in after.items()):
            self._changed()

    def _news(self, uuid: str, before: Condition, after: Condition) -> bool:
        if (before.fault, before.detail) == (after.fault, after.detail):
            return False
        words = health.explain(after)
        if after.healthy:
            self._well_since[uuid] = now_text()
            logger.info("GPU is well again", extra={"gpu": uuid, "was": before.detail})
            self._tell(
                REASON_WELL, f"GPU {uuid} is well again: it was reset, and quiet for {self._calm_s:g} s"
            )
        else:
            logger.error("GPU is sick", extra={"gpu": uuid, "fault": after.detail})
            self._tell(REASON_SICK, f"GPU {uuid} takes no new claims: {words}")
        return True

    @staticmethod
    def _sample(nvml: Nvml | None, gpu: Gpu, xids: Iterable[int]) -> Sample:
        if nvml is None:
            return Sample(xids=tuple(xids))
        vitals = nvml.vitals(gpu.uuid)
        return Sample(
            lost=vitals.lost,
            uncorrected=vitals.uncorrected,
            action_needed=vitals.action_needed,
            xids=tuple(xids),
        )

    def listen(self) -> None:
        """Waits a second for events, making the set anew where NVML or its GPUs have changed."""
        nvml = self._gpus.nvml
        uuids = frozenset(gpu.uuid for gpu in self._gpus.by_device().values())
        if nvml is None or not uuids:
            self._loops[0].pause(_REOPEN_S)
            return
        try:
            if self._events is None or not self._events.is_of(nvml, uuids) or self._overdue():
                if self._events is not None:
                    self._events.close()
                self._events, self._events_made_s = nvml.xid_events(uuids), self._monotonic_s()
            xid = self._events.wait(_EVENT_WAIT_MS)
        except NvmlError as error:
            logger.warning("NVML's events cannot be waited for", extra={"error": str(error)})
            self._events_made_s = float("-inf")  # without a card that is lost it may be of use
            self._loops[0].pause(_REOPEN_S)
            return
        if xid is not None:
            self._xids.put(xid)
            self._loops[1].poke()

    def _overdue(self) -> bool:
        """Whether a card that was lost may be listened to by now, or waiting has failed."""
        age_s = self._monotonic_s() - self._events_made_s
        return age_s == float("inf") or (
            self._events is not None and self._events.incomplete and age_s > _REOPEN_S
        )

    def _read(self) -> dict[str, Condition]:
        try:
            document = json.loads(self._path.read_text())
            if document["version"] != _VERSION or document["boot_id"] != self._boot_id:
                return {}
            return {str(uuid): _condition(body) for uuid, body in document["gpus"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.error("what was known of the GPUs' health is lost", extra={"error": repr(error)})
            return {}

    def _save(self) -> None:
        """Keeps what must be known after a restart; writes only what changed."""
        gpus = {
            uuid: {**dataclasses.asdict(condition), "calm_since_s": None}
            for uuid, condition in sorted(self._conditions.items())
        }
        text = json.dumps({"version": _VERSION, "boot_id": self._boot_id, "gpus": gpus})
        if text == self._stored:
            return
        try:
            files.write_atomic(self._path, text.encode(), mode=0o600)
            self._stored = text
        except OSError as error:
            logger.error("the GPUs' health cannot be kept", extra={"error": str(error)})


def _condition(body: Mapping[str, Any]) -> Condition:
    known = Condition(**body)
    fault = None if known.fault is None else Fault(known.fault)
    return dataclasses.replace(known, fault=fault, calm_since_s=None)
