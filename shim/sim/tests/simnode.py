# SPDX-License-Identifier: Apache-2.0
"""A simulated node, and processes that use it."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
MIB = 1 << 20
PAGE = 2 * MIB
CONTEXT = 300 * MIB
L4_CAPACITY = 22578 * MIB


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {timeout_s} s: {what}"
        time.sleep(0.002)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    outputs: list[Any]


class Probe:
    """A process that makes the driver calls it is told to (probe.py)."""

    def __init__(self, *, command: list[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.own_pid: int = self._answer().outputs[0]

    def _answer(self) -> Answer:
        assert self.popen.stdout
        line = self.popen.stdout.readline()
        assert line, f"the process ended with {self.popen.wait()}"
        return Answer(**json.loads(line))

    def call(self, *request: Any) -> Answer:
        assert self.popen.stdin
        self.popen.stdin.write(json.dumps(request) + "\n")
        return self._answer()

    def code(self, *request: Any) -> int:
        return self.call(*request).code

    def start(self, device: int = 0) -> int:
        """Initialise, and make the device's primary context current; returns the context."""
        assert self.code("cuInit", 0) == 0
        return self.retain(device)

    def retain(self, device: int = 0) -> int:
        answer = self.call("cuDevicePrimaryCtxRetain", {"out": 0}, device)
        assert answer.code == 0
        assert self.code("cuCtxSetCurrent", answer.outputs[0]) == 0
        context: int = answer.outputs[0]
        return context

    def allocate(self, size: int) -> int:
        answer = self.call("cuMemAlloc_v2", {"out": 0}, size)
        assert answer.code == 0
        address: int = answer.outputs[0]
        return address

    def info(self) -> tuple[int, int]:
        answer = self.call("cuMemGetInfo_v2", {"out": 0}, {"out": 0})
        assert answer.code == 0
        return answer.outputs[0], answer.outputs[1]

    def listed(self) -> list[tuple[int, int]]:
        """(pid, bytes) of the first GPU's processes as NVML lists them to this process."""
        assert self.code("nvmlInit_v2") == 0
        device = self.call("nvmlDeviceGetHandleByIndex_v2", 0, {"out": 0}).outputs[0]
        room = {"bytes": "00" * 24 * 8}
        answer = self.call("nvmlDeviceGetComputeRunningProcesses_v3", device, {"out": 8}, room)
        assert answer.code == 0
        raw = bytes.fromhex(answer.outputs[1])
        return sorted(struct.unpack_from("<I4xQ", raw, 24 * i) for i in range(answer.outputs[0]))

    def exec(self) -> None:
        assert self.popen.stdin
        self.popen.stdin.write('["become_another_program"]\n')
        self._answer()

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def end(self) -> None:
        assert self.popen.stdin
        self.popen.stdin.close()
        assert self.popen.wait() == 0


@dataclass(slots=True)
class Node:
    root: Path
    build: Path
    probes: list[Probe] = field(default_factory=list)

    def environment(self, **extra: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        return inherited | {"ALIQUOT_SIM_ROOT": str(self.root), "LD_LIBRARY_PATH": str(self.build)} | extra

    def tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.build / "aliquot-sim"), *arguments]
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)

    def init(self, *gpus: str) -> None:
        options = [option for gpu in gpus for option in ("--gpu", gpu)]
        made = self.tool("init", *options, "--node", "node-a", "--context-mib", str(CONTEXT // MIB))
        assert made.returncode == 0, made.stderr

    def books(self) -> Any:
        shown = self.tool("books", "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def gpu(self, index: int = 0) -> Any:
        return self.books()["gpus"][index]

    def group(self, name: str, index: int = 0) -> Any:
        books = self.books()
        uuid = books["gpus"][index]["uuid"]
        return next(g for g in books["groups"] if g["group"] == name and g["gpu"] == uuid)

    def probe(self, *prefix: str, group: str = "", visible: str | None = None) -> Probe:
        extra = {"ALIQUOT_SIM_GROUP": group} if group else {}
        if visible is not None:
            extra["CUDA_VISIBLE_DEVICES"] = visible
        command = [*prefix, sys.executable, "-S", "-E", str(HERE / "probe.py")]
        probe = Probe(command=command, environment=self.environment(**extra))
        self.probes.append(probe)
        return probe
