# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the test clients, built once, and a simulated node with one container."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from shim.tests import shares
from shim.tests.probe import Probe
from shim.tests.sandbox import MIB, SHIM, SIM, Sandbox

LIMIT: Final = 512 * MIB
"""Of the share, in tests that do not want another."""
_HERE: Final = Path(__file__).resolve().parent
_FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
_CC: Final = ("cc", *_FLAGS, f"-I{_HERE.parent / 'src'}")
_DRIVER: Final = (f"-L{SIM}", "-l:libcuda.so.1")


class Clients:
    """Programs and plug-ins of clients/, each built on first use."""

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder

    def build(self, name: str, *flags: str, source: str | None = None) -> str:
        """Path of the binary `name`, made of `source` (default: NAME.c) with `flags`."""
        target = self._folder / name
        if not target.exists():
            file = _HERE / "clients" / (source or f"{Path(name).stem}.c")
            command = [*_CC, "-o", str(target), str(file), *flags]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
        return str(target)

    def probe(self) -> str:
        """clients/probe.c."""
        return self.build("probe", "-ldl")

    def linked(self, name: str, *others: str) -> str:
        """A program linked against the driver, of NAME.c and of the others."""
        sources = (str(_HERE / "clients" / f"{other}.c") for other in others)
        return self.build(name, *sources, *_DRIVER, "-pthread")

    def plugin(self, name: str, *flags: str, source: str) -> str:
        """A shared object linked against the driver."""
        return self.build(name, "-shared", "-fPIC", *_DRIVER, *flags, source=source)


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    missing = [str(path) for path in (SHIM, SIM / "libcuda.so.1", SIM / "aliquot-sim") if not path.exists()]
    if missing:
        pytest.fail(f"not built: {', '.join(missing)} (make shim sim)")
    return Clients(folder=tmp_path_factory.mktemp("clients"))


@pytest.fixture
def node(tmp_path: Path) -> Sandbox:
    """A node with one simulated L4, and a container without a share yet."""
    sandbox = Sandbox(folder=tmp_path)
    sandbox.start_node("l4")
    return sandbox


@pytest.fixture
def share(node: Sandbox) -> Path:
    """The container's share of its GPU, of LIMIT bytes."""
    return shares.make(node, gpu=node.gpu(), limit=LIMIT)


@pytest.fixture
def start(clients: Clients) -> Iterator[Callable[..., Probe]]:
    """start(sandbox, …): a probe that ends with the test."""
    with ExitStack() as stack:

        def begin(sandbox: Sandbox, **options: Any) -> Probe:
            return stack.enter_context(Probe(sandbox=sandbox, program=clients.probe(), **options))

        yield begin
