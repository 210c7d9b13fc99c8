# SPDX-License-Identifier: Apache-2.0
"""Where the experiments run: on a real GPU at the shim's own path, or on the simulated one in a sandbox."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from aliquot_agent import region, sharedir
from aliquot_api import names
from shim.tests.sandbox import ROOT, SHIM, Sandbox
from tests.gpu.driver import Driver

SHARES: Final = Path(names.CONTAINER_SHARES_DIR)
PROGRAMS: Final = Path(__file__).resolve().parent / "programs"
_BESIDE: Final = SHARES.with_name("shares-beside")
_INSIDE: Final = ("unshare", "--mount", "sh", "-ec", 'mount --bind "$0" "$1"; shift; exec "$@"')
_PACKAGES: Final = os.pathsep.join(str(ROOT / name) for name in (".", "api", "node-agent"))


class GpuError(Exception):
    """The experiments cannot run here; says why."""


class Container(Protocol):
    """Programs with and without the shim, and the share that they find."""

    simulated: bool
    gpu: str

    def command(self, *command: str, bare: bool) -> tuple[list[str], dict[str, str]]:
        """Command line and environment that run `command` inside."""

    def share(self, *, limit_bytes: int, cores_percent: int = 0, name: str = "share-0") -> Path:
        """Makes the share `name`, in place of the one of that name."""

    def beside(self, name: str) -> "Container":
        """Another one with shares of its own, on the same GPU."""

    def outside(self) -> dict[str, str]:
        """Environment of a program that is in none, and sees the GPU."""


@dataclass(kw_only=True)
class Real:
    """This machine's first GPU. The shares lie where the shim looks for them, and go at the end."""

    gpu: str
    shares: Path = SHARES
    simulated: bool = False

    def command(self, *command: str, bare: bool) -> tuple[list[str], dict[str, str]]:
        environment = self.outside()
        if not bare:
            environment["LD_PRELOAD"] = str(SHIM)
        inside = [] if self.shares == SHARES else [*_INSIDE, str(self.shares), str(SHARES)]
        return [*inside, *command], environment

    def share(self, *, limit_bytes: int, cores_percent: int = 0, name: str = "share-0") -> Path:
        return _share(self.shares / name, gpu=self.gpu, limit_bytes=limit_bytes, cores_percent=cores_percent)

    def beside(self, name: str) -> "Real":
        shares = _BESIDE / name
        shares.mkdir(parents=True)
        return Real(gpu=self.gpu, shares=shares)

    def outside(self) -> dict[str, str]:
        return dict(os.environ) | {"PYTHONPATH": _PACKAGES, "CUDA_VISIBLE_DEVICES": self.gpu}


@dataclass(kw_only=True)
class Simulated:
    """A simulated H200 in a mount namespace."""

    sandbox: Sandbox
    gpu: str
    simulated: bool = True

    def command(self, *command: str, bare: bool) -> tuple[list[str], dict[str, str]]:
        inside = self.sandbox.environment(bare=bare) | {"PYTHONPATH": _PACKAGES}
        return self.sandbox.command(*command, bare=bare, env=inside), dict(os.environ)

    def share(self, *, limit_bytes: int, cores_percent: int = 0, name: str = "share-0") -> Path:
        path = self.sandbox.shares / name
        return _share(path, gpu=self.gpu, limit_bytes=limit_bytes, cores_percent=cores_percent)

    def beside(self, name: str) -> "Simulated":
        return Simulated(sandbox=self.sandbox.beside(name), gpu=self.gpu)

    def outside(self) -> dict[str, str]:
        return self.sandbox.environment(bare=True) | {"PYTHONPATH": _PACKAGES}


def _share(path: Path, *, gpu: str, limit_bytes: int, cores_percent: int) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    quota = region.Quota(
        gpu_uuid=gpu,
        memory_limit_bytes=limit_bytes,
        cores_millipercent=cores_percent * 1000,
        context_estimate_bytes=512 << 20,
    )
    sharedir.create(path, quota)
    return path


@contextmanager
def real() -> Iterator[Real]:
    """The first real GPU; GpuError where there is none, or shares are in use."""
    if SHARES.exists():
        raise GpuError(f"{SHARES} exists: this machine has shares of its own, or is inside one")
    if not SHIM.exists():
        raise GpuError(f"{SHIM} is not built (make shim)")
    try:
        gpu = Driver().first_gpu()
    except OSError as error:
        raise GpuError(f"no NVIDIA driver here: {error}") from error
    SHARES.mkdir(parents=True)
    try:
        yield Real(gpu=gpu)
    finally:
        shutil.rmtree(SHARES)
        shutil.rmtree(_BESIDE, ignore_errors=True)


@contextmanager
def simulated(folder: Path) -> Iterator[Simulated]:
    """A simulated H200."""
    sandbox = Sandbox(folder=folder)
    sandbox.start_node("h200")
    yield Simulated(sandbox=sandbox, gpu=sandbox.gpu())


def run(
    container: Container, *command: str, bare: bool = False, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    words, environment = container.command(*command, bare=bare)
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def python(name: str, *arguments: str) -> Sequence[str]:
    """Command line of programs/NAME.py."""
    return (sys.executable, str(PROGRAMS / f"{name}.py"), *arguments)
