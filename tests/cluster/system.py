# SPDX-License-Identifier: Apache-2.0
"""What the test bed needs of the machine: run a command, wait for a condition, hold a lock."""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class TestbedError(Exception):
    """Something of the test bed failed; the text says what, and what to do where that is known."""

    __test__ = False  # not a test class, whatever pytest thinks of its name


def run(
    *argv: str | Path,
    stdin: str | None = None,
    timeout_s: float = 60,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end and return what it printed; a failure carries its last words."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=cwd,
            env=env,
            check=False,
        )
    except FileNotFoundError as error:
        raise TestbedError(
            f"{words[0]} is not installed; the Debian packages the test bed needs are listed in packages.txt"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{' '.join(words)}: still running after {timeout_s} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise TestbedError(f"{' '.join(words)}: exit status {done.returncode}: {said}")
    return done.stdout


def wait_until(
    condition: Callable[[], T | None],
    *,
    what: str,
    timeout_s: float,
    interval_s: float = 0.05,
    retry_on: tuple[type[Exception], ...] = (),
) -> T:
    """Ask until the condition gives something true, and return that.

    Exceptions in `retry_on` count as "not yet"; the last one is named if time runs out.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            answer = condition()
            if answer:
                return answer
            last = answer
        except retry_on as error:
            last = error
        if time.monotonic() > deadline:
            raise TestbedError(f"waited {timeout_s:g} s for {what}; last seen: {last}")
        time.sleep(interval_s)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory; it is made if missing, and removed afterwards if it is empty."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_same(handle, directory):
                try:
                    yield
                finally:
                    with suppress(OSError):
                        directory.rmdir()
                return
        finally:
            os.close(handle)


def try_lock(file: Path) -> int | None:
    """Lock a file and return its descriptor, or None while another living process holds it."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def is_unmounted(disk: Path) -> bool:
    """Whether no loop device uses a file (any more): the kernel lets go some time after the last unmount."""
    return not disk.exists() or not run("losetup", "-j", disk).strip()


def _is_same(handle: int, directory: Path) -> bool:
    try:
        there = directory.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)
