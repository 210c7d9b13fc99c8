# SPDX-License-Identifier: Apache-2.0
"""Brings checkpoints, share directories, CDI specs and claims back together, at start and now and then.

Kubelet forgets to ask for an Unprepare when its pod was force-deleted while nobody listened; a crash or an
operator's rm leaves the rest.
"""

import logging
import re
from typing import Final

from aliquot_agent.claims import Claims
from aliquot_agent.errors import Refused
from aliquot_agent.library import Library
from aliquot_agent.loops import Loop
from aliquot_agent.region import DamagedRegion
from aliquot_agent.store import Store

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 30.0
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Reconciler:
    """The loop. `start`, then `stop`."""

    def __init__(self, *, claims: Claims, store: Store, library: Library) -> None:
        self._claims = claims
        self._store = store
        self._library = library
        self._loop = Loop(name="reconciler", step=self.reconcile, period_s=_PERIOD_S)

    def start(self) -> None:
        """Reconciles now, then every 30 s."""
        self._loop.start()

    def stop(self) -> None:
        """Ends the loop."""
        self._loop.stop()

    def reconcile(self) -> None:
        """One pass: release what is gone, repair what is damaged, remove what belongs to nobody."""
        try:
            self._reconcile()
        except OSError as error:  # a disk that is read-only, or gone
            logger.error("nothing can be reconciled", extra={"error": str(error)})

    def _reconcile(self) -> None:
        found = self._store.names() | self._claims.set_aside()
        on_disk = {name for name in found if _UID.fullmatch(name)}  # lost+found and the like are not ours
        # Read after the disk: a claim that is being prepared has its checkpoint before anything else.
        prepared = self._claims.prepared()
        for uid in sorted(on_disk - {claim.uid for claim in prepared}):
            try:
                if self._claims.remove_orphan(uid):
                    logger.warning("removed files of a claim without checkpoint", extra={"claim_uid": uid})
            except OSError as error:
                logger.error("files stay", extra={"claim_uid": uid, "error": str(error)})
        for claim in prepared:
            if self._loop.stopping:
                return
            try:
                if not self._claims.release_if_gone(claim):
                    self._claims.repair(claim)
            except (OSError, Refused, DamagedRegion) as error:
                extra = {"claim_uid": claim.uid, "error": str(error)}
                logger.error("claim cannot be reconciled", extra=extra)
        # Read again: a library counts from the moment that a checkpoint names it.
        self._library.collect({claim.library for claim in self._claims.prepared()})
        self._claims.make_ready()
