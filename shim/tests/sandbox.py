# SPDX-License-Identifier: Apache-2.0
"""Runs programs as in a tenant's container: own mount namespace, shares at /run/aliquot/shares, the shim.

The shim reads no environment variable, so tests bring the files to its path instead.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build"
SHIM: Final = Path(os.environ.get("ALIQUOT_TEST_SHIM", BUILD / "shim" / "libaliquot.so"))
SANITIZER: Final = tuple(os.environ.get("ALIQUOT_TEST_SANITIZER", "").split())
SLOWER: Final = 20 if SANITIZER else 1
"""By how much to shorten what hammers."""
"""The sanitizer's own library, before all others: shim.tests.sanitized sets both, and its options."""
_SANITIZER_OPTIONS: Final = {
    name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")
}
SIM: Final = BUILD / "sim"
PYTHON: Final = sys.executable
MIB: Final = 1 << 20
TIMEOUT_S: Final = 60

_ENTER: Final = """
mount -t tmpfs none /run
mkdir -p /run/aliquot/shares
mount --bind "$1" /run/aliquot/shares
for file in $3; do mount --bind "/run/aliquot/shares/$file" "/run/aliquot/shares/$file"
  mount -o remount,bind,ro "/run/aliquot/shares/$file"; done
if [ -n "$2" ]; then mkdir /run/etc; cp -a /etc/. /run/etc; echo "$2" > /run/etc/ld.so.preload
  mount --bind /run/etc /etc; fi
shift 3
exec "$@"
"""


class Books(TypedDict):
    """`aliquot-sim books --json`, the parts that tests look at."""

    gpus: list[dict[str, int | str]]
    groups: list[dict[str, int | str]]
    processes: list[dict[str, int | str | bool]]


@dataclass(kw_only=True)
class Sandbox:
    """One simulated node and one container on it."""

    folder: Path
    preload: Sequence[str] = (*SANITIZER, str(SHIM))
    group: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    through_file: bool = False
    """Preload by /etc/ld.so.preload, as in a real container, instead of LD_PRELOAD."""
    read_only: Sequence[str] = ()
    """Files below the shares directory that are mounted read-only."""

    @property
    def shares(self) -> Path:
        """The directory that the container sees as /run/aliquot/shares."""
        return self.folder / "shares"

    @property
    def node(self) -> Path:
        """The simulated node's root."""
        return self.folder / "node"

    def start_node(self, *gpus: str) -> None:
        """Makes the simulated GPUs and the empty shares directory."""
        self.shares.mkdir(exist_ok=True)
        arguments = [word for gpu in gpus for word in ("--gpu", gpu)]
        self.tool("init", "--node", "shimtest", *arguments)

    def beside(self, name: str) -> "Sandbox":
        """Another container on this node."""
        folder = self.folder / name
        (folder / "shares").mkdir(parents=True)
        (folder / "node").symlink_to(self.node)
        return Sandbox(folder=folder, group=name)

    def tool(self, *words: str) -> str:
        """`aliquot-sim WORDS` on this node; what it prints."""
        done = subprocess.run(
            [str(SIM / "aliquot-sim"), *words, "--root", str(self.node)],
            check=True,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
        return done.stdout.decode()

    def inject(self, fault: str, *options: str) -> None:
        """A fault of the first GPU."""
        self.tool("inject", fault, "--gpu", "0", *options)

    def books(self) -> Books:
        """The simulated driver's own books."""
        books: Books = json.loads(self.tool("books", "--json"))
        return books

    def gpu(self, index: int = 0) -> str:
        """UUID of a GPU of the node."""
        return str(self.books()["gpus"][index]["uuid"])

    def context_bytes(self) -> int:
        """What a context takes of the first GPU."""
        return int(self.books()["gpus"][0]["context"])

    def container(self) -> dict[str, int]:
        """What the container takes and took of its GPU, by the driver's books."""
        group = next(group for group in self.books()["groups"] if group["group"] == self.group)
        return {name: int(group[name]) for name in ("used", "peak", "requested", "requested_peak")}

    def environment(self, *, bare: bool = False) -> dict[str, str]:
        """For a program in the container; `bare`: without the shim."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LD_LIBRARY_PATH": str(SIM),
            "ALIQUOT_SIM_ROOT": str(self.node),
            "ALIQUOT_SIM_GROUP": self.group,
        }
        if SANITIZER and not bare:
            env |= _SANITIZER_OPTIONS
        if not bare and not self.through_file:
            env["LD_PRELOAD"] = " ".join(self.preload)
        return env

    def command(
        self, *command: str, new_pids: bool = False, bare: bool = False, env: dict[str, str]
    ) -> list[str]:
        """The whole command line that runs `command` inside."""
        spaces = ["--pid", "--fork", "--mount-proc", "--kill-child"] if new_pids else []
        inside = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *command]
        preload = " ".join(self.preload) if self.through_file and not bare else ""
        return [
            "unshare", "--mount", "--propagation", "private", *spaces, "--",
            "sh", "-ec", _ENTER, "sh", str(self.shares), preload, " ".join(self.read_only), *inside,
        ]  # fmt: skip

    def run(
        self,
        *command: str,
        bare: bool = False,
        new_pids: bool = False,
        env: dict[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `command` to its end."""
        chosen = self.environment(bare=bare) if env is None else env
        return subprocess.run(
            self.command(*command, new_pids=new_pids, bare=bare, env=chosen),
            check=check,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def start(
        self, *command: str, bare: bool = False, new_pids: bool = False, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts `command` with pipes."""
        chosen = self.environment(bare=bare) if env is None else env
        return subprocess.Popen(
            self.command(*command, new_pids=new_pids, bare=bare, env=chosen),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
