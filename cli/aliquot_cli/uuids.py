# SPDX-License-Identifier: Apache-2.0
"""GPUs by the UUIDs that people type."""

from typing import Final

_SHORTEST: Final = 8
"""Of a UUID's beginning that may stand for it."""


def is_meant(uuid: str, words: str) -> bool:
    """Whether `words` are this UUID, or its beginning; in either case."""
    uuid, words = uuid.lower(), words.lower()
    return uuid == words or (len(words) >= _SHORTEST and uuid.startswith(words))
