# SPDX-License-Identifier: Apache-2.0
"""Puts libaliquot.so where containers get it from: a folder named by its content, never changed after.

Running containers keep the version they started with; a new agent brings a new folder beside it.
"""

import hashlib
import threading
from pathlib import Path
from typing import Final

from aliquot_agent import cdi, files
from aliquot_agent.errors import Refused
from aliquot_api.names import CONTAINER_LIBRARY

_PRELOAD_TEXT: Final = f"{CONTAINER_LIBRARY}\n".encode()


class Library:
    """The library of this agent's image, on the host."""

    def __init__(self, *, source: Path, state_dir: Path) -> None:
        self._source = source
        self._root = state_dir / "lib"
        self._lock = threading.Lock()

    def ensure(self) -> Path:
        """The folder with library and preload file, both verified byte by byte, written where they differ.

        Raises Refused where there is no library: a share without it would have no limit.
        """
        try:
            data = self._source.read_bytes()
        except OSError as error:
            raise Refused(f"no library to put into containers: {error}") from error
        folder = self._root / _name(data)
        with self._lock:
            if not folder.is_dir():
                folder.mkdir(parents=True, mode=0o755)
            _ensure_file(folder / cdi.LIBRARY, data, mode=0o755)
            _ensure_file(folder / cdi.PRELOAD, _PRELOAD_TEXT, mode=0o644)
        return folder

    @staticmethod
    def intact(folder: str) -> bool:
        """Whether a folder that an earlier agent made still holds what its name says."""
        try:
            name = _name((Path(folder) / cdi.LIBRARY).read_bytes())
            return name == Path(folder).name and (Path(folder) / cdi.PRELOAD).read_bytes() == _PRELOAD_TEXT
        except OSError:
            return False


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _ensure_file(path: Path, data: bytes, *, mode: int) -> None:
    try:
        if path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    files.write_atomic(path, data, mode=mode)
    files.sync(path)  # its name stands for its content, also after a power cut
