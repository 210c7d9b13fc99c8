# SPDX-License-Identifier: Apache-2.0
"""Daemons that outlive us: started with a log and a record each, and never mistaken for another process."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .system import TestbedError

# A daemon joins its cgroup before it becomes itself: it can be found there even if we die right after.
_JOIN = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True, slots=True)
class Daemon:
    """A program to keep running: its name (such as "node-1/kubelet") and its whole command line."""

    name: str
    argv: tuple[str, ...]

    @property
    def part(self) -> str:
        """The part of the cluster it belongs to: a node, or "control"."""
        node, slash, _ = self.name.rpartition("/")
        return node if slash else "control"


class Processes:
    """The daemons of one cluster, by name."""

    def __init__(self, *, records: Path, logs: Path, cgroup_of: Callable[[str], Path], path: str) -> None:
        self._records = records
        self._logs = logs
        self._cgroup_of = cgroup_of
        self._path = path

    def log(self, name: str) -> Path:
        return self._logs / f"{name.replace('/', '.')}.log"

    def names(self) -> list[str]:
        """Every daemon that was started and not stopped; it may have died."""
        return sorted(path.stem.replace(".", "/", 1) for path in self._records.glob("*.json"))

    def forget(self, part: str) -> None:
        """Drop the records of a part of the cluster whose daemons are known to be dead."""
        for name in self.names():
            if Daemon(name, ()).part == part:
                self._record(name).unlink(missing_ok=True)

    def last_words(self, name: str, *, lines: int = 15) -> str:
        """The end of a daemon's log."""
        with suppress(FileNotFoundError):
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def start(self, daemon: Daemon) -> int:
        """Start a daemon in a session of its own, without any file of ours, and return its pid."""
        if self.pid(daemon.name) is not None:
            raise TestbedError(f"{daemon.name} runs already, as process {self.pid(daemon.name)}")
        log = self.log(daemon.name)
        argv = ["/bin/sh", "-c", _JOIN, str(self._cgroup_of(daemon.part)), *daemon.argv]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            "/bin/sh",
            argv,
            {"PATH": self._path, "HOME": "/root", "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._record(daemon.name).write_text(json.dumps({"pid": pid, "born": _born(pid)}))
        return pid

    def pid(self, name: str) -> int | None:
        """The pid of a daemon, or None if it does not run."""
        with _Handle.of(self._record(name)) as handle:
            return handle.pid

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a running daemon."""
        with _Handle.of(self._record(name)) as handle:
            if handle.pid is None:
                raise TestbedError(f"{name} does not run; its log is {self.log(name)}")
            handle.send(number)

    def stop(self, name: str, *, timeout_s: float = 10) -> None:
        """End a daemon with SIGTERM, or SIGKILL if it takes too long; one that is dead is fine too."""
        with _Handle.of(self._record(name)) as handle:
            handle.send(signal.SIGTERM)
            handle.send(signal.SIGCONT)  # a paused one would never see it
            if not handle.wait(timeout_s):
                handle.send(signal.SIGKILL)
                handle.wait(timeout_s)
        self._record(name).unlink(missing_ok=True)

    def kill(self, *names: str, timeout_s: float = 10) -> None:
        """End daemons with SIGKILL, all at once."""
        handles = [_Handle.of(self._record(name)) for name in names]
        for handle in handles:
            handle.send(signal.SIGKILL)
        for name, handle in zip(names, handles, strict=True):
            with handle:
                if not handle.wait(timeout_s):
                    raise TestbedError(f"{name}, process {handle.pid}, survives SIGKILL")
            self._record(name).unlink(missing_ok=True)

    def _record(self, name: str) -> Path:
        return self._records / f"{name.replace('/', '.')}.json"


class _Handle:
    """A process held by a pidfd, so that its number cannot come to mean another one."""

    def __init__(self, pid: int | None, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @classmethod
    def of(cls, record: Path) -> "_Handle":
        try:
            stored = json.loads(record.read_text())
            descriptor = os.pidfd_open(stored["pid"])
        except (FileNotFoundError, ProcessLookupError, json.JSONDecodeError):
            return cls(None, -1)
        if _born(stored["pid"]) == stored["born"]:
            return cls(stored["pid"], descriptor)
        os.close(descriptor)
        return cls(None, -1)

    def send(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        if self.pid is None:
            return True
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return False
        with suppress(ChildProcessError):  # started by an earlier run: somebody else's to reap
            os.waitpid(self.pid, os.WNOHANG)
        return True

    def __enter__(self) -> "_Handle":
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _born(pid: int) -> str | None:
    """When a process was born, as a text that no other process of that number shares; None for the dead."""
    with suppress(FileNotFoundError, ProcessLookupError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if words[0] not in "ZX":
            return f"{_machine_boot()}/{words[19]}"
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return None


def _machine_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def kill_members(files: Sequence[Path], *, of: str, timeout_s: float = 10) -> None:
    """Kill the processes in these cgroup.procs files, all of cgroup `of` or below, until none is left."""
    deadline = time.monotonic() + timeout_s
    killed: set[int] = set()
    while pids := {int(pid) for file in files for pid in _lines(file)}:
        if time.monotonic() > deadline:
            raise TestbedError(f"processes {sorted(pids)} of {of} survive SIGKILL")
        for pid in pids:
            with suppress(ProcessLookupError, FileNotFoundError):
                descriptor = os.pidfd_open(pid)
                try:
                    if f":{of}/" in Path(f"/proc/{pid}/cgroup").read_text().replace("\n", "/\n"):
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
        killed |= pids
        time.sleep(0.01)
    for pid in killed:
        with suppress(ChildProcessError):  # started by an earlier run: somebody else's to reap
            os.waitpid(pid, 0)


def _lines(file: Path) -> list[str]:
    with suppress(FileNotFoundError, OSError):
        return file.read_text().split()
    return []
