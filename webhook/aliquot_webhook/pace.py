# SPDX-License-Identifier: Apache-2.0
"""How long a replica rests between its writes of one ledger, so that another one gets its turn.

Who writes again at once, for ever, leaves another replica no chance: that has to read before it writes, and
what it has read is old by then. But most of the time nobody else wants to write, and rest is lost time.
"""

import random
from typing import Final

_MOST_REST_S: Final = 0.1
_AMONG_SEVERAL: Final = (1.0, 3.0)
"""Times as long as the write took, where another replica writes as well: by chance, so that two do not meet
again and again."""
_OWED: Final = 0.5
_AT_ONCE: Final = 4.0
"""Who has lost reads and writes, again and again, before it gives up. So a replica that knows
of no other one rests for the time of four writes after eight in a row: two tries of a loser, of which one
falls into the rest as a whole, and then both know of each other."""


class Pace:
    """The writes of one ledger by this replica."""

    def __init__(self) -> None:
        self.rests_until_s = 0.0
        self._ended_s = 0.0
        self._owed_s = 0.0
        """Rest that others might need by now; pauses that come by themselves pay for it."""

    def wrote(self, *, began_s: float, ended_s: float, is_shared: bool) -> None:
        """A write is over; `is_shared`: another replica writes as well."""
        took_s = ended_s - began_s
        self._owed_s = max(0.0, self._owed_s - (began_s - self._ended_s)) + took_s * _OWED
        rest_s = 0.0
        if is_shared:
            rest_s = took_s * random.uniform(*_AMONG_SEVERAL)
        elif self._owed_s >= took_s * _AT_ONCE:
            rest_s = self._owed_s
        self._ended_s = ended_s
        self.rests_until_s = ended_s + min(rest_s, _MOST_REST_S)
