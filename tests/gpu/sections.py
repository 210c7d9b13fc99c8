# SPDX-License-Identifier: Apache-2.0
"""The experiments, in the order of their worth: each returns what it saw, with and without the shim."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aliquot_agent import region, sharedir
from aliquot_api.config import ComputePolicy
from shim.tests.sandbox import ROOT, SIM
from tests.bench.shim.measuring import build, lines
from tests.gpu import elf
from tests.gpu.container import Container, python, run
from tests.gpu.driver import Nvml
from tests.testkit.holder import holding

GIB: Final = 1 << 30
UNLIMITED_BYTES: Final = 1 << 45
TORCH_SECONDS: Final = 5
SHARES_PERCENT: Final = (25, 50, 75)
COMPANY_PERCENT: Final = (30, 70)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """An experiment that cannot be made here, and what is missing."""

    missing: str


Answers = Mapping[str, Any] | Skipped


def environment(container: Container) -> Answers:
    """Driver's linker layout, and whether namespaces and locks work here."""
    found = SIM / "libcuda.so.1" if container.simulated else _loaded("libcuda.so.1")
    spaces = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--", "true"], capture_output=True, timeout=10, check=False
    )
    return {"libcuda": asdict(elf.layout(found)), "mount and pid namespaces": spaces.returncode == 0}


def assumptions(container: Container) -> Answers:
    """The driver's answers to what we assume, and where those under the shim differ."""
    container.share(limit_bytes=UNLIMITED_BYTES)
    bare = _json(container, *python("assumptions"), bare=True)
    ours = _json(container, *python("assumptions"))
    differ = {name: ours.get(name) for name in bare if ours.get(name) != bare[name]}
    return {"bare": bare, "otherwise under the shim": differ, "lookup": _json(container, *python("lookup"))}


def times(container: Container) -> Answers:
    """Time of the usual calls: bare, with the shim, and the ratio."""
    container.share(limit_bytes=64 * GIB)
    program = ROOT / "build" / "gpu" / "measure"
    program.parent.mkdir(parents=True, exist_ok=True)
    if not program.exists():  # it can be brought along where there is no compiler
        build(program)
    seen: dict[bool, dict[str, float]] = {}
    for bare in (True, False):
        seen[bare] = lines(_text(container, str(program), "calls", bare=bare))
    return {
        name: {"bare_ns": value, "shim_ns": seen[False][name], "ratio": round(seen[False][name] / value, 3)}
        for name, value in seen[True].items()
        if value
    }


def pytorch(container: Container) -> Answers:
    """PyTorch in 8 GiB with each of its allocators."""
    if missing := _lacks(container, "torch"):
        return missing
    answers: dict[str, Any] = {}
    for name, setting in (
        ("native", ""),
        ("virtual", "expandable_segments:True"),
        ("pools", "backend:cudaMallocAsync"),
    ):
        share = container.share(limit_bytes=8 * GIB)
        command = ("env", f"PYTORCH_CUDA_ALLOC_CONF={setting}", *python("torch_memory"))
        answers[name] = _json(container, *command) | {"peak": _usage(share).peak_bytes}
    return answers


def jax(container: Container) -> Answers:
    """JAX with its preallocation and with the platform's allocator, in 8 GiB."""
    if missing := _lacks(container, "jax"):
        return missing
    answers: dict[str, Any] = {}
    for allocator in ("default", "platform"):
        share = container.share(limit_bytes=8 * GIB)
        command = ("env", f"XLA_PYTHON_CLIENT_ALLOCATOR={allocator}", *python("jax_memory"))
        answers[allocator] = _json(container, *command) | {"peak": _usage(share).peak_bytes}
    return answers


def compute(container: Container) -> Answers:
    """Part of the unpaced rate that shares give, alone."""
    if missing := _lacks(container, "torch"):
        return missing
    answers: dict[str, Any] = {}
    for work in ("product", "graph"):
        command = python("torch_compute", str(TORCH_SECONDS), work)
        container.share(limit_bytes=UNLIMITED_BYTES)
        bare = float(_json(container, *command, bare=True)["per_s"])
        whole = float(_json(container, *command)["per_s"])
        answers[f"{work}, unpaced of bare"] = round(whole / bare, 4)
        for percent in SHARES_PERCENT:
            container.share(limit_bytes=UNLIMITED_BYTES, cores_percent=percent)
            answers[f"{work}, {percent} %"] = round(float(_json(container, *command)["per_s"]) / bare, 3)
    return answers


def namespaces(container: Container) -> Answers:
    """Whether NVML outside shows a process of another pid namespace under its host pid, and its ledger."""
    share = container.share(limit_bytes=4 * GIB)
    if container.simulated:
        return Skipped(missing="a real NVML: the simulated one's pids are tested with the shim")
    unshared = ("unshare", "--pid", "--fork", "--kill-child", "--")
    words, inside = container.command(*unshared, *python("hold", "1024"), bare=False)
    with subprocess.Popen(
        words, env=inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        answers = {
            "said": said,
            "nvml": Nvml(gpu=container.gpu).processes(),
            "used": _usage(share).used_bytes,
        }
        holder.stdin.close()
    return answers


def company(container: Container) -> Answers:
    """Part of the GPU that 30 and 70 % get when both want all of it: by prices alone, and corrected.

    And what 30 % is lent while 70 % is idle.
    """
    prepared = [(container.beside(str(percent)), percent) for percent in COMPANY_PERCENT]
    if run(prepared[0][0], "true", bare=True).returncode:
        return Skipped(missing="the right to make mount namespaces, in which each tenant finds its own share")
    rounds = _text(container, *python("busy", "calibrate"), bare=True).strip()
    warm_s, count_s = (1, 2) if container.simulated else (5, 10)
    command = python("busy", rounds, str(warm_s), str(count_s))
    bare = _rates([container.command(*command, bare=True)])[0]
    shares = [where.share(limit_bytes=4 * GIB, cores_percent=percent) for where, percent in prepared]

    def parts() -> dict[str, float]:
        rates = _rates([where.command(*command, bare=False) for where, _ in prepared])
        return {
            f"{percent} %": round(rate / bare, 3) for rate, (_, percent) in zip(rates, prepared, strict=True)
        }

    answers: dict[str, Any] = {"kernels per s, bare": round(bare), "by prices": parts()}
    if run(container, sys.executable, "-c", "import pynvml", bare=True).returncode:
        return answers | {"corrected": "not tried: no Python package nvidia-ml-py"}
    with holding(shares, environment=container.outside(), policy=ComputePolicy.STRICT):
        answers["corrected"] = parts()
    with holding(shares, environment=container.outside()):
        [rate] = _rates([prepared[0][0].command(*command, bare=False)])
    return answers | {"30 % beside idle 70 %": round(rate / bare, 3)}


SECTIONS: Final[Mapping[str, Callable[[Container], Answers]]] = {
    "environment": environment,
    "assumptions": assumptions,
    "times": times,
    "pytorch": pytorch,
    "jax": jax,
    "compute": compute,
    "company": company,
    "namespaces": namespaces,
}


def _usage(share: Path) -> region.Usage:
    with sharedir.ShareFiles(path=share) as files:
        return region.usage(files.quota(), files.ledger())


def _text(container: Container, *command: str, bare: bool = False) -> str:
    done = run(container, *command, bare=bare, timeout_s=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _json(container: Container, *command: str, bare: bool = False) -> dict[str, Any]:
    return dict(json.loads(_text(container, *command, bare=bare)))


def _rates(programs: Sequence[tuple[list[str], dict[str, str]]]) -> list[float]:
    """Kernels per second of `busy`, all at the same time."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(words, env=inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for words, inside in programs
        ]
        said = [process.stdout.readline() for process in running if process.stdout]
        if said != ["ready\n"] * len(running):
            raise RuntimeError(f"not ready: {said}")
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [float(json.loads(process.communicate(timeout=120)[0])["per_s"]) for process in running]


def _lacks(container: Container, package: str) -> Skipped | None:
    if container.simulated:
        return Skipped(missing="a real GPU: the CUDA runtime asks the driver for tables that we do not have")
    found = run(container, sys.executable, "-c", f"import {package}", bare=True, timeout_s=120)
    return Skipped(missing=f"the Python package {package}") if found.returncode else None


def _loaded(name: str) -> Path:
    """Path of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(name):
            return path
    raise FileNotFoundError(f"{name} is not loaded")
