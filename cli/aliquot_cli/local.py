# SPDX-License-Identifier: Apache-2.0
"""`aliquot run` and `aliquot ps`: shares of this machine's GPUs, without Kubernetes.

`run` becomes the program that it runs: exit status, signals and terminal are the program's own.
"""

import argparse
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aliquot_agent import region
from aliquot_agent.errors import NvmlError
from aliquot_agent.nvml import Nvml
from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.names import CONTAINER_PRELOAD
from aliquot_cli import mounts, output
from aliquot_cli.output import bar, size
from aliquot_cli.share import cores_millipercent, memory_limit
from aliquot_cli.workstation import PRELOAD, SHARES, Card, Run, Workstation, check_room, choose, root_of

LIBRARY_VARIABLE: Final = "ALIQUOT_LIBRARY"
LIBRARIES: Final = (
    Path("/usr/local/lib/aliquot/libaliquot.so"),
    Path("/usr/lib/aliquot/libaliquot.so"),
)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `run` and `ps`."""
    parser = commands.add_parser("run", help="run a program with a share of this machine's GPU")
    add_share_options(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM …", help="what to run")
    parser.set_defaults(run=run)
    listing = commands.add_parser("ps", help="the shares of this machine that aliquot run has made")
    output.add_output_option(listing)
    listing.set_defaults(run=run_ps)


def add_share_options(parser: argparse.ArgumentParser) -> None:
    """What a share is, and of which GPU."""
    parser.add_argument("--memory", required=True, metavar="SIZE", help="limit on each GPU, such as 4Gi")
    parser.add_argument("--cores", default=0, type=int, metavar="PERCENT", help="0-100; 0 = not paced")
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="GPU", help="index or UUID, several times for several"
    )
    parser.add_argument(
        "--context-estimate",
        default="0Mi",
        metavar="SIZE",
        help="what each process's CUDA context counts as (default 0Mi: contexts are not counted)",
    )
    parser.add_argument(
        "--library", type=Path, metavar="FILE", help=f"libaliquot.so; also ${LIBRARY_VARIABLE}"
    )


def run(arguments: argparse.Namespace) -> int:
    """`aliquot run … -- PROGRAM`; returns only where that did not work."""
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise InvalidInput(field="PROGRAM", value=None, fix="want aliquot run --memory SIZE -- PROGRAM …")
    library = find_library(arguments.library)
    through_file = Path(CONTAINER_PRELOAD).is_file()
    preload = f"{library}\n{Path(CONTAINER_PRELOAD).read_text()}" if through_file else None
    path, _ = make(arguments, program, preload=preload)
    mounts.enter(path / SHARES, preload=path / PRELOAD if through_file else None)
    if not through_file:
        before = os.environ.get("LD_PRELOAD")
        os.environ["LD_PRELOAD"] = f"{library} {before}" if before else str(library)
    os.execvp(program[0], program)


def make(
    arguments: argparse.Namespace, command: Sequence[str], *, preload: str | None = None
) -> tuple[Path, int]:
    """A run with the shares that the command line asks for: its directory, and the lock of its life."""
    memory_bytes = memory_limit(arguments.memory)
    estimate_bytes = quantity.parse(arguments.context_estimate, field="--context-estimate")
    cores = cores_millipercent(arguments.cores)
    here = workstation()
    with here.alone():
        runs = here.living()
        cards = choose(look(), arguments.gpu)
        for card in cards:
            check_room(card, runs, memory_bytes=memory_bytes, cores_percent=arguments.cores)
        quotas = [
            region.Quota(
                gpu_uuid=card.uuid,
                memory_limit_bytes=memory_bytes,
                cores_millipercent=cores,
                context_estimate_bytes=estimate_bytes,
            )
            for card in cards
        ]
        return here.create(quotas, command=command, preload=preload)


def workstation() -> Workstation:
    """This user's."""
    return Workstation(root=root_of(os.environ, uid=os.getuid()))


def look() -> list[Card]:
    """The GPUs of this machine. Raises InvalidInput where NVML cannot tell."""
    try:
        nvml = Nvml()
    except NvmlError as error:
        raise InvalidInput(
            field="--gpu", value=None, fix=f"want a machine with NVIDIA's driver: {error}"
        ) from error
    try:
        return [
            Card(gpu.index, gpu.uuid, gpu.product_name, gpu.memory_bytes, _used(nvml, gpu.uuid))
            for gpu in nvml.inventory().gpus
        ]
    except NvmlError as error:
        raise InvalidInput(field="--gpu", value=None, fix=str(error)) from error
    finally:
        nvml.close()


def _used(nvml: Nvml, uuid: str) -> int:
    """What processes hold; where the driver does not say it of each, all that is in use."""
    held = [process.used_bytes for process in nvml.processes(uuid)]
    known = [each for each in held if each is not None]
    return sum(known) if len(known) == len(held) else nvml.load(uuid).used_bytes or 0


def find_library(given: Path | None) -> Path:
    """libaliquot.so: as said, else where it is installed. Raises InvalidInput: no limit without it."""
    named = given or (Path(os.environ[LIBRARY_VARIABLE]) if os.environ.get(LIBRARY_VARIABLE) else None)
    for path in LIBRARIES if named is None else (named,):
        if path.is_file():
            return path.resolve()
    raise InvalidInput(
        field="--library",
        value=str(named or ""),
        fix=f"want the path of libaliquot.so (make shim builds it), or install it as {LIBRARIES[0]}",
    )


def run_ps(arguments: argparse.Namespace) -> int:
    """`aliquot ps`."""
    here = workstation()
    with here.alone():
        runs = here.living()
    printer = output.printer(arguments.output)
    if printer.for_people:
        printer.text(render(runs, now_s=time.time()))
    else:
        printer.document(document(runs))
    return 0


def render(runs: Sequence[Run], *, now_s: float) -> str:
    """For people."""
    head = (
        "RUN",
        "PID",
        "AGE",
        "GPU",
        "",
        "USED",
        "LIMIT",
        "PEAK",
        "DENIED",
        "CORES",
        "PROCESSES",
        "COMMAND",
    )
    rows = [
        (
            run.name,
            str(run.pid),
            _age(now_s - run.created_s),
            share.gpu_uuid,
            bar(share.usage.used_bytes, share.usage.limit_bytes),
            size(share.usage.used_bytes),
            size(share.usage.limit_bytes),
            size(share.usage.peak_bytes),
            str(share.usage.denied),
            str(share.cores_percent or "-"),
            str(share.usage.processes),
            shlex.join(run.command),
        )
        for run in runs
        for share in run.shares
    ]
    return output.table(head, rows)


def document(runs: Sequence[Run]) -> list[dict[str, object]]:
    """For machines: sizes in bytes."""
    return [
        {
            "run": run.name,
            "pid": run.pid,
            "command": list(run.command),
            "created": run.created_s,
            "shares": [
                {
                    "gpu": share.gpu_uuid,
                    "limit": share.usage.limit_bytes,
                    "used": share.usage.used_bytes,
                    "peak": share.usage.peak_bytes,
                    "denied": share.usage.denied,
                    "processes": share.usage.processes,
                    "cores": share.cores_percent,
                }
                for share in run.shares
            ],
        }
        for run in runs
    ]


def _age(seconds: float) -> str:
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"
