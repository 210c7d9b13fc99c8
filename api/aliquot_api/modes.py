# SPDX-License-Identifier: Apache-2.0
"""How a GPU is shared, in one word: `shim`, `mps`, `timeslice=short`. What nodes offer and claims ask for."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from aliquot_api.config import ShareConfig, Sharing, TimeSlice
from aliquot_api.errors import InvalidInput

WORDS: Final = (*Sharing, *(f"{Sharing.TIMESLICE}={length}" for length in TimeSlice))


@dataclass(frozen=True, slots=True)
class Mode:
    """Of a GPU, or what a claim wishes; a wish without a length takes any."""

    sharing: Sharing = Sharing.SHIM
    time_slice: TimeSlice | None = None

    def __str__(self) -> str:
        return self.sharing.value if self.time_slice is None else f"{self.sharing}={self.time_slice}"

    def serves(self, wish: "Mode") -> bool:
        """Whether a GPU of this mode is what a claim asks for."""
        return self.sharing is wish.sharing and wish.time_slice in (None, self.time_slice)

    def config(self) -> ShareConfig:
        """As a claim states it."""
        return ShareConfig(sharing=self.sharing, time_slice=self.time_slice)


SHIM: Final = Mode()
EXCLUSIVE: Final = Mode(Sharing.EXCLUSIVE)
MPS: Final = Mode(Sharing.MPS)


@lru_cache(maxsize=64)  # asked for every share of a node in every Prepare
def parse(text: str, *, field: str) -> Mode:
    """The mode that `text` names; raises InvalidInput."""
    word = text.strip().lower()
    if word not in WORDS:
        raise InvalidInput(field=field, value=text[:64], fix=f"want one of {', '.join(WORDS)}")
    sharing, _, length = word.partition("=")
    return Mode(Sharing(sharing), TimeSlice(length) if length else None)


def of_config(config: ShareConfig) -> Mode:
    """What a merged ShareConfig wishes; one that states nothing takes GPUs that the library holds."""
    return Mode(config.sharing or Sharing.SHIM, config.time_slice)
