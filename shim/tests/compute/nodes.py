# SPDX-License-Identifier: Apache-2.0
"""Tenants that keep a simulated GPU busy, and what each got of it by the simulated driver's own books."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aliquot_agent import region
from shim.tests import shares
from shim.tests.sandbox import MIB, ROOT, SIM, Sandbox

SOURCE: Final = Path(__file__).with_name("tenant.c")
LIMIT: Final = 8192 * MIB
STEP_S: Final = 0.02
_DEADLINE_S: Final = 60


def build(folder: Path, source: Path = SOURCE) -> str:
    """A client of this folder, linked against the simulated driver."""
    target = folder / source.stem
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [
            *("cc", *flags, f"-I{ROOT}/shim/src", "-o", str(target), str(source)),
            *(f"-L{SIM}", "-l:libcuda.so.1", "-pthread", "-lm"),
        ],
        check=True,
        timeout=_DEADLINE_S,
    )
    return str(target)


@dataclass(kw_only=True)
class Share:
    """A share directory, by its words."""

    path: Path

    def cores(self, percent: float) -> None:
        """A live change of what is reserved."""
        self._poke("cores_millipercent", round(percent * 1000))

    def lend(self, percent: float, *, seconds: float) -> None:
        """Lends for so long from now, in the order that never lends for longer."""
        self._poke("lent_millipercent", round(percent * 1000))
        self._poke("lent_until_ns", time.monotonic_ns() + round(seconds * 1e9))

    def word(self, name: str) -> int:
        """One of the ledger's words."""
        field_ = getattr(region.LedgerLayout, name)
        with (self.path / "ledger").open("rb") as file:
            file.seek(field_.offset)
            return int.from_bytes(file.read(8), "little")

    def set_word(self, name: str, value: int) -> None:
        """As a tenant may spoil it."""
        shares.poke_mapped(self.path, "ledger", getattr(region.LedgerLayout, name).offset, value)

    def _poke(self, name: str, value: int) -> None:
        shares.poke_mapped(self.path, "quota", getattr(region.QuotaLayout, name).offset, value)


class Tenant:
    """A running program: `tenant`'s orders, and its process."""

    def __init__(self, *, process: subprocess.Popen[str], group: str) -> None:
        self._process = process
        self.group = group

    def wait_ready(self) -> Self:
        """Until its first launch is through."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"{line!r} {self._process.communicate(timeout=_DEADLINE_S)[1]}"
        return self

    @property
    def pid(self) -> int:
        """Of the program itself: everything on the way to it was replaced by exec."""
        return self._process.pid

    def order(self, text: str) -> None:
        """pause, go."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def launches(self) -> int:
        """How many there were."""
        self.order("count")
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, at once."""
        self._process.kill()
        self._process.communicate(timeout=_DEADLINE_S)

    def end(self) -> int:
        """Its exit status."""
        if self._process.poll() is None:
            self.order("end")
        _, errors = self._process.communicate(timeout=_DEADLINE_S)
        assert errors == "", errors
        return self._process.returncode


@dataclass(kw_only=True)
class Node:
    """A simulated node with one GPU, and containers on it, each with a share of its own."""

    folder: Path
    program: str
    gpu: str = "h100"
    _sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    _tenants: list[Tenant] = field(default_factory=list)

    def __enter__(self) -> Self:
        first = Sandbox(folder=self.folder)
        first.start_node(self.gpu)
        self._sandboxes[""] = first
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tenant in self._tenants:
            tenant.kill()

    def share(self, name: str, percent: float) -> Share:
        """A container `name` with a share of the GPU."""
        self._sandboxes[name] = self._sandboxes[""].beside(name)
        return self._make(name, percent, ordinal=0)

    def share_of_another_gpu(self, name: str, percent: float) -> Share:
        """A second share in the container `name`, of the node's second GPU."""
        return self._make(name, percent, ordinal=1)

    def _make(self, name: str, percent: float, *, ordinal: int) -> Share:
        gpu = self._sandboxes[""].gpu(ordinal)
        path = shares.make(self._sandboxes[name], gpu=gpu, limit=LIMIT, name=f"share-{ordinal}")
        share = Share(path=path)
        share.cores(percent)
        return share

    def sandbox(self, name: str) -> Sandbox:
        """The container `name`, to run other programs in."""
        return self._sandboxes[name]

    def start(self, name: str, work: str, *options: str, bare: bool = False) -> Tenant:
        """A program in the container `name`."""
        process = self._sandboxes[name].start(self.program, work, *options, bare=bare)
        tenant = Tenant(process=process, group=name)
        self._tenants.append(tenant)
        return tenant.wait_ready()

    def set(self, *options: str) -> None:
        """aliquot-sim set."""
        self._sandboxes[""].tool("set", *options)

    def used_ns(self) -> Mapping[str, int]:
        """GPU time of each container, ever, of processes that live."""
        used: dict[str, int] = {}
        for process in self._sandboxes[""].books()["processes"]:
            group = str(process["group"])
            used[group] = used.get(group, 0) + int(process["gpu_ns"])
        return used

    def measure(self, seconds: float) -> Mapping[str, float]:
        """Percent of the GPU's time that each container got in the next `seconds`."""
        begin, before = time.monotonic(), self.used_ns()
        while time.monotonic() - begin < seconds:
            time.sleep(STEP_S)
        after, took_ns = self.used_ns(), (time.monotonic() - begin) * 1e9
        return {name: 100 * (ns - before.get(name, 0)) / took_ns for name, ns in after.items()}
