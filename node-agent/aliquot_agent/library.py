# SPDX-License-Identifier: Apache-2.0
"""Puts libaliquot.so where containers get it from: a folder named by its content, never changed after.

Running containers keep the version they started with; a new agent brings a new folder beside it.
"""

import hashlib
import logging
import os
import platform
import shutil
import threading
import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from aliquot_agent import cdi, files
from aliquot_agent.errors import Refused
from aliquot_api.names import CONTAINER_LIBRARY

logger = logging.getLogger(__name__)

_YOUNG_S: Final = 3600.0
_TOUCH_S: Final = 60.0
_MOMENT_S: Final = 0.1
_PRELOAD_TEXT: Final = f"{CONTAINER_LIBRARY}\n".encode()

_Signatures = tuple[tuple[int, int, int, int], ...]


class Library:
    """The library of this agent's image, on the host."""

    def __init__(self, *, source: Path, state_dir: Path, moment_s: float = _MOMENT_S) -> None:
        """What was looked at within `moment_s` is not looked at again: a burst of Prepares looks once."""
        self._source = source
        self._moment_s = moment_s
        self._looked_at_s = float("-inf")
        self._root = state_dir / "lib"
        self._lock = threading.Lock()
        self._verified: tuple[Path | None, _Signatures] = (None, ())
        """The folder, and what its files looked like then; replaced as one."""
        self._touched: Path | None = None
        self._touched_at_s = 0.0

    def ensure(self) -> Path:
        """The folder with library and preload file, both verified byte by byte, written where they differ.

        Read again only where one of the files has changed since. Raises Refused where there is no library:
        a share without it would have no limit.
        """
        if (verified := self._unchanged()) is not None:  # as in every Prepare: nobody waits for anybody
            return verified
        with self._lock:
            if (verified := self._unchanged()) is not None:
                return verified
            try:
                data = self._source.read_bytes()
            except OSError as error:
                raise Refused(f"no library to put into containers: {error}") from error
            folder = self._root / _name(data)
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            self._touch(folder)
            _ensure_file(folder / cdi.LIBRARY, data, mode=0o755)
            _ensure_file(folder / cdi.PRELOAD, _PRELOAD_TEXT, mode=0o644)
            self._verified = folder, self._seen(folder)
            return folder

    def _unchanged(self) -> Path | None:
        """The folder that was verified, while its files are those of then."""
        folder, signatures = self._verified
        now_s = time.monotonic()
        if folder is None or now_s - self._looked_at_s < self._moment_s:
            return folder
        if self._seen(folder) != signatures or not signatures:
            return None
        self._touch(folder)
        self._looked_at_s = now_s
        return folder

    def _touch(self, folder: Path) -> None:
        """Lets another agent's `collect` know that the folder was wanted a moment ago."""
        now_s = time.monotonic()
        if folder != self._touched or now_s - self._touched_at_s > _TOUCH_S:
            os.utime(folder)
            self._touched, self._touched_at_s = folder, now_s

    def _seen(self, folder: Path) -> _Signatures:
        """What tells the files' content from another one without reading them; empty where one is gone."""
        try:
            # In every Prepare: without pathlib's layers.
            found = [
                os.stat(path) for path in (self._source, f"{folder}/{cdi.LIBRARY}", f"{folder}/{cdi.PRELOAD}")
            ]
        except OSError:
            return ()
        return tuple((each.st_dev, each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def collect(self, used: AbstractSet[str]) -> None:
        """Removes folders that no prepared claim names, and that are not this agent's.

        One that was made or looked for in the last hour stays: another agent may be about to name it.
        """
        now_s = time.time()
        with self._lock:
            for folder in self._root.iterdir() if self._root.is_dir() else ():
                if str(folder) in used or folder == self._verified[0]:
                    continue
                if abs(now_s - folder.stat().st_mtime) > _YOUNG_S:
                    logger.info("removing a library that nobody uses", extra={"folder": str(folder)})
                    shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def intact(folder: str) -> bool:
        """Whether a folder that an earlier agent made still holds what its name says."""
        try:
            name = _name((Path(folder) / cdi.LIBRARY).read_bytes())
            return name == Path(folder).name and (Path(folder) / cdi.PRELOAD).read_bytes() == _PRELOAD_TEXT
        except OSError:
            return False


def default_source(image: Path = Path("/opt/aliquot/libaliquot.so")) -> Path:
    """The image's library, or else the one in this package, if it holds what its folder's name says."""
    carried = Path(__file__).parent / "lib" / platform.machine()
    if not image.exists():
        for path in sorted(carried.glob(f"*/{cdi.LIBRARY}")):
            if _name(path.read_bytes()) == path.parent.name:
                return path
    return image


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
