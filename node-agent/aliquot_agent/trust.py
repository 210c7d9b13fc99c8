# SPDX-License-Identifier: Apache-2.0
"""A TLS context that is made anew when a file that it is made of has changed: certificates are renewed.

To make one takes a millisecond of processor time, and a burst of Prepares opens many connections at once.
"""

import os
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from aliquot_agent import files

_Signatures = tuple[files.Signature, ...]


class Trust:
    """Answers the context of now. Thread-safe."""

    def __init__(self, *, make: Callable[[], ssl.SSLContext], files: Iterable[Path | str]) -> None:
        self._make = make
        self._files = tuple(files)
        self._made: tuple[_Signatures, ssl.SSLContext] | None = None

    def context(self) -> ssl.SSLContext:
        """The context of the files as they are; raises OSError."""
        signatures = self._signatures()
        made = self._made
        if made is None or made[0] != signatures:
            made = self._made = signatures, self._make()
        return made[1]

    def _signatures(self) -> _Signatures:
        """What tells the files' content from another one without reading them."""
        found = []
        for path in self._files:
            with suppress(FileNotFoundError):  # reading it will say so
                found.append(files.signature(os.stat(path)))
        return tuple(found)
