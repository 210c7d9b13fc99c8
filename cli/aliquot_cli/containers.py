# SPDX-License-Identifier: Apache-2.0
"""`aliquot docker run`: a container with a share of this machine's GPU, by Docker's own command.

All of its options may be given. The share lives as long as the container, also a detached one: `docker wait`
holds its lock then.
"""

import argparse
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from aliquot_agent import sharedir
from aliquot_api.errors import InvalidInput
from aliquot_api.names import CONTAINER_LIBRARY, CONTAINER_PRELOAD, CONTAINER_SHARES_DIR
from aliquot_cli.local import add_share_options, find_library, make
from aliquot_cli.workstation import PRELOAD, SHARES

_CONTAINER: Final = "container"
"""The file of a run in which Docker writes the container's id."""
_QUESTION_S: Final = 30


class Access(StrEnum):
    """How the container gets the GPU itself, which is none of ours."""

    GPUS = "gpus"
    CDI = "cdi"
    NONE = "none"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `docker run`."""
    group = commands.add_parser("docker", help="containers with a share of this machine's GPU")
    verbs = group.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser("run", help="docker run, with a share")
    add_share_options(parser)
    parser.add_argument(
        "--access",
        type=Access,
        choices=tuple(Access),
        default=Access.GPUS,
        help="how the container gets the GPU: --gpus (default), --device of CDI, none: your own options",
    )
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- OPTIONS … IMAGE …", help="what docker run takes"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`aliquot docker run … -- IMAGE …`; the exit status is docker's, which is the container's."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise InvalidInput(field="IMAGE", value=None, fix="want aliquot docker run --memory SIZE -- IMAGE …")
    docker = shutil.which("docker")
    if docker is None:
        raise InvalidInput(field="PATH", value=os.environ.get("PATH"), fix="want Docker's command in it")
    library = find_library(arguments.library)
    path, lock = make(arguments, ["docker", "run", *words], preload=f"{CONTAINER_LIBRARY}\n")
    options = [*mounts(path, library), *access(arguments.access, _gpus(path))]
    status = _run([docker, "run", "--cidfile", str(path / _CONTAINER), *options, *words], lock)
    _keep(docker, path / _CONTAINER, lock)
    return status


def mounts(path: Path, library: Path) -> Iterator[str]:
    """Options that put a run's shares, and the library, where a container of Kubernetes has them."""
    shares = path / SHARES
    yield from _mount(shares, CONTAINER_SHARES_DIR)
    for share in sorted(shares.iterdir()):
        yield from _mount(share / "quota", f"{CONTAINER_SHARES_DIR}/{share.name}/quota", "readonly")
    yield from _mount(library, CONTAINER_LIBRARY, "readonly")
    yield from _mount(path / PRELOAD, CONTAINER_PRELOAD, "readonly")


def access(kind: Access, gpus: Iterable[str]) -> Iterator[str]:
    """Options that give a container these GPUs."""
    if kind == Access.GPUS:
        yield from ("--gpus", f'"device={",".join(gpus)}"')
    elif kind == Access.CDI:
        yield from (f"--device=nvidia.com/gpu={gpu}" for gpu in gpus)


def _gpus(path: Path) -> Iterator[str]:
    for share in sorted((path / SHARES).iterdir()):
        with sharedir.ShareFiles(path=share) as files:
            yield files.quota().gpu_uuid


def _mount(source: Path, target: str, *more: str) -> Iterator[str]:
    if "," in str(source) or '"' in str(source):
        raise InvalidInput(field="--library", value=str(source), fix="want a path without commas and quotes")
    yield from ("--mount", ",".join(("type=bind", f"source={source}", f"target={target}", *more)))


def _run(command: Sequence[str], lock: int) -> int:
    """Runs docker, which gets the signals that we get, and holds the lock too."""
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        if process is not None and number == signal.SIGTERM:  # SIGINT comes to it from the terminal itself
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    process = subprocess.Popen(command, pass_fds=(lock,))
    status = process.wait()
    return status if status >= 0 else 128 - status


def _keep(docker: str, container: Path, lock: int) -> None:
    """Where the container outlives docker's command, leaves behind what holds the lock until its end."""
    if not container.exists() or not _is_running(docker, found := container.read_text(encoding="utf-8")):
        return
    quiet = subprocess.DEVNULL
    subprocess.Popen(
        (docker, "wait", found),
        pass_fds=(lock,),
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )


def _is_running(docker: str, container: str) -> bool:
    """Whether it is, or nobody can say."""
    ask = (docker, "inspect", "--format", "{{.State.Running}}", container)
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=_QUESTION_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return answer.stdout.strip() == "true"
