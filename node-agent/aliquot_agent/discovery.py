# SPDX-License-Identifier: Apache-2.0
"""Looks again and again at which GPUs the node has and which others hand out; says what is left out.

Every agent does: kubelet may ask the one that does not lead to prepare a claim.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from aliquot_agent import devices, foreign
from aliquot_agent.errors import ApiError
from aliquot_agent.hardware import Hardware, LeftOut
from aliquot_agent.loops import Loop

logger = logging.getLogger(__name__)

REASON: Final = "GpuLeftOut"
_PERIOD_S: Final = 30.0
_PERIOD_BROKEN_S: Final = 5.0


class NeighbourApi(Protocol):
    """What is asked of the API server (kube.Kube)."""

    def get_node(self, name: str) -> dict[str, Any]:
        """The Node object."""

    def list_node_slices(self, node: str) -> list[dict[str, Any]]:
        """The slices of a node, of all drivers."""


class Discovery:
    """The loop. `start`, then `stop`; `look` at any time."""

    def __init__(
        self,
        *,
        hardware: Hardware,
        api: NeighbourApi,
        node: str,
        device_plugins_dir: Path,
        changed: Callable[[], None],
        complain: Callable[[str, str], None],
    ) -> None:
        self._hardware = hardware
        self._api = api
        self._node = node
        self._checkpoint = device_plugins_dir / foreign.PLUGIN_CHECKPOINT
        self._changed = changed
        self._complain = complain
        self._by_api: Mapping[str, str] = {}
        self._told: tuple[LeftOut, ...] = ()
        self._unreadable = ""
        self._loop = Loop(name="discovery", step=self._step, period_s=_PERIOD_BROKEN_S)
        self._looking = threading.Lock()
        self._looked = 0
        self._plugins: tuple[int, int] | None = None

    def start(self) -> None:
        """Begins to look."""
        self._loop.start()

    def stop(self) -> None:
        """Ends it."""
        self._loop.stop()

    def poke(self) -> None:
        """Looks now."""
        self._looked = 0
        self._loop.poke()

    def _step(self) -> None:
        self._looked -= 1
        plugins = self._plugins_signature()
        if self._looked <= 0 or not self._hardware.by_device() or plugins != self._plugins:
            self._plugins = plugins
            self._looked = int(_PERIOD_S / _PERIOD_BROKEN_S)
            self.look()
        else:
            self.tell()

    def look(self) -> None:
        """Asks NVML and the neighbours once.

        Whoever begins to lead must not publish before it knows the owners, so it waits for a look that is
        under way, which waits for the server.
        """
        with self._looking:
            changed = self._hardware.refresh()
            changed = self._hardware.own(self._owners()) or changed
        if changed:
            self._changed()
        self.tell()

    def tell(self) -> None:
        """Says what is left out, once for each change."""
        left_out = self._hardware.left_out()
        for each in left_out:
            if each not in self._told:
                extra = {"index": each.index, "gpu": each.uuid, "cause": each.cause, "why": each.message}
                logger.warning("GPU left out", extra=extra)
                self._complain(REASON, f"GPU {each.uuid or each.index} is not published: {each.message}")
        self._told = left_out

    def _plugins_signature(self) -> tuple[int, int] | None:
        """Tells one content of kubelet's checkpoint from the next without reading it."""
        try:
            status = self._checkpoint.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _owners(self) -> Mapping[str, str]:
        gpus = list(self._hardware.by_device().values())
        try:
            bus_ids = {
                gpu.uuid: place.bus_id
                for gpu in gpus
                if (place := devices.pci_place(gpu.pci_bus_id)) is not None
            }
            annotations = self._api.get_node(self._node)["metadata"].get("annotations") or {}
            by_slices = foreign.by_slices(self._api.list_node_slices(self._node), gpus, bus_ids)
            self._by_api = {**foreign.by_hami(annotations, gpus), **by_slices}
        except ApiError as error:  # what was known counts on
            logger.warning("neighbours cannot be asked for", extra={"error": str(error)})
        return {**self._by_api, **self._by_plugin()}

    def _by_plugin(self) -> Mapping[str, str]:
        gpus = list(self._hardware.by_device().values())
        problem = ""
        try:
            return foreign.by_device_plugin(self._checkpoint.read_text(), gpus)
        except FileNotFoundError:
            return {}  # no device plugin was ever there
        except (OSError, foreign.Unreadable) as error:
            problem = str(error)
            return {}
        finally:
            if problem and problem != self._unreadable:
                logger.error("device plugins cannot be looked at", extra={"error": problem})
            self._unreadable = problem
