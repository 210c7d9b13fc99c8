# SPDX-License-Identifier: Apache-2.0
"""Holds the shares' cores from outside: lends idle time, corrects the shims' prices, notices who escapes.

The thread. Up to twenty times a second it reads the ledgers of GPUs on which time is lent or wanted, seven
times those of others that somebody uses, and once a second NVML. What it decides is stored in the quotas,
word by word, and nothing is kept that could not be read there again: killed, its loans expire, its prices and
the numbers of shares without a reservation stay as they are, and the next one goes on from there.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aliquot_agent.attribution import Key
from aliquot_agent.holding import SharedGpu
from aliquot_agent.loops import Loop
from aliquot_agent.nvml import Use
from aliquot_agent.pacing import Paced, PacedShare
from aliquot_agent.unchanged import same_objects

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 0.05
_CALM_PERIODS: Final = 3
_FEW: Final = 32
"""With more shares that are looked at all the time, they are looked at half as often: reading takes time."""
_SECOND_NS: Final = 1_000_000_000


class Compute:
    """The loop. `start`, then `stop`; `paced` and `untold` at any time."""

    def __init__(
        self,
        *,
        shares: Callable[[], Sequence[PacedShare]],
        users: Callable[[], Mapping[int, Key]],
        use: Callable[[str, int], Sequence[Use] | None],
        escaped: Callable[[PacedShare, str], None] = lambda *_: None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`shares` are those of now; `users` says whose a host pid is; `use` asks NVML about a GPU since a
        time stamp, None where it never answers; `escaped` hears once of a share that uses too much."""
        self._shares = shares
        self._users = users
        self._use = use
        self._escaped = escaped
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._given: tuple[PacedShare, ...] = ()
        self._by_gpu: Mapping[str, Mapping[Key, PacedShare]] = {}
        self._gpus: dict[str, SharedGpu] = {}
        self._paced: Mapping[Key, Paced] = {}
        self._untold: frozenset[str] = frozenset()
        self._periods = 0
        self._next_second_ns = 0
        self._loop = Loop(name="compute", step=self.step, period_s=_PERIOD_S)

    def start(self) -> None:
        """Begins."""
        self._loop.start()

    def stop(self) -> None:
        """Ends the loop; what is lent expires by itself."""
        self._loop.stop()
        for gpu in self._gpus.values():
            gpu.close()
        self._gpus.clear()

    def paced(self) -> Mapping[Key, Paced]:
        """What was seen last."""
        return self._paced

    def untold(self) -> frozenset[str]:
        """UUIDs of GPUs whose driver does not tell who uses them: nothing is corrected there."""
        return self._untold

    def step(self) -> None:
        """One look at whatever is due."""
        now_ns = self._monotonic_ns()
        self._periods += 1
        if now_ns >= self._next_second_ns:
            self._next_second_ns = now_ns + _SECOND_NS
            self._second(now_ns)
        few = sum(len(gpu) for gpu in self._gpus.values() if gpu.hot) <= _FEW
        for gpu in self._gpus.values():
            periods = (1 if few else 2) if gpu.hot else _CALM_PERIODS
            if self._periods % periods == 0 and (gpu.hot or gpu.in_use):
                gpu.look(now_ns)

    def _second(self, now_ns: int) -> None:
        by_gpu = self._shares_by_gpu()
        for uuid in self._gpus.keys() - by_gpu.keys():
            self._gpus.pop(uuid).close()
        users = self._users()
        paced: dict[Key, Paced] = {}
        untold = set()
        for uuid, shares in by_gpu.items():
            gpu = self._gpus.setdefault(uuid, SharedGpu())
            gpu.update(shares)
            gpu.in_use = not shares.keys().isdisjoint(users.values())
            gpu.look(now_ns)
            wall_ns = self._wall_ns()
            uses = self._use(uuid, gpu.since_us(wall_ns // 1000))
            if uses is None:
                untold.add(uuid)
            elif uses:
                for share, words in gpu.told(uses, users, now_ns=now_ns, wall_ahead_ns=wall_ns - now_ns):
                    extra = {"claim_uid": share.key[0], "share": share.key[1], "what": words}
                    logger.warning("share escapes its pacing", extra=extra)
                    self._escaped(share, words)
            paced |= gpu.paced()
        self._paced, self._untold = paced, frozenset(untold)

    def _shares_by_gpu(self) -> Mapping[str, Mapping[Key, PacedShare]]:
        """Those of now, by GPU UUID and key."""
        shares = tuple(self._shares())
        if not same_objects(self._given, shares):
            self._given, by_gpu = shares, dict[str, dict[Key, PacedShare]]()
            for share in shares:
                by_gpu.setdefault(share.gpu_uuid, {})[share.key] = share
            self._by_gpu = by_gpu
        return self._by_gpu
