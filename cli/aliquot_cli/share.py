# SPDX-License-Identifier: Apache-2.0
"""`aliquot share`: makes, changes and reads a share directory by hand, without a cluster.

For debugging, workstations and tests: the shim takes its limits from /run/aliquot/shares/*/.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from aliquot_agent import region, sharedir
from aliquot_api import quantity
from aliquot_api.errors import InvalidInput

_EPILOG: Final = "Sizes are quantities: 512Mi, 8Gi. The shim looks for shares in /run/aliquot/shares/*/."


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `share` and its three verbs."""
    group = commands.add_parser("share", help="make, change and read a share directory", epilog=_EPILOG)
    verbs = group.add_subparsers(dest="verb", required=True, metavar="VERB")

    create = verbs.add_parser("create", help="make a share directory", epilog=_EPILOG)
    create.add_argument("dir", type=Path, metavar="DIR")
    create.add_argument(
        "--gpu", required=True, metavar="UUID", help="GPU-xxxxxxxx-…, as nvidia-smi -L prints it"
    )
    create.add_argument("--memory", required=True, metavar="SIZE", help="memory limit, at least 1Mi")
    create.add_argument("--cores", default=0, type=int, metavar="PERCENT", help="0-100; 0 = not paced")
    create.add_argument(
        "--context-estimate",
        default="0Mi",
        metavar="SIZE",
        help="what a CUDA context counts as; without the node agent nobody measures it (default 0Mi)",
    )
    create.add_argument(
        "--log",
        default="",
        metavar="PATH",
        help="where programs' shim writes a line when it refuses the GPU altogether (default: nowhere)",
    )
    create.set_defaults(run=run_create)

    change = verbs.add_parser("set", help="change limits; running processes see it at once", epilog=_EPILOG)
    change.add_argument("dir", type=Path, metavar="DIR")
    change.add_argument("--memory", metavar="SIZE", help="new memory limit")
    change.add_argument("--cores", type=int, metavar="PERCENT", help="new compute share")
    change.set_defaults(run=run_set)

    show = verbs.add_parser("show", help="print limit and use", epilog=_EPILOG)
    show.add_argument("dir", type=Path, metavar="DIR")
    show.add_argument("--json", action="store_true", help="one JSON object, sizes in bytes")
    show.set_defaults(run=run_show)


def run_create(arguments: argparse.Namespace) -> None:
    """`aliquot share create DIR --gpu UUID --memory SIZE [--cores PERCENT]`."""
    quota = region.Quota(
        gpu_uuid=arguments.gpu,
        memory_limit_bytes=memory_limit(arguments.memory),
        cores_millipercent=cores_millipercent(arguments.cores),
        context_estimate_bytes=quantity.parse(arguments.context_estimate, field="--context-estimate"),
        log_path=arguments.log,
    )
    sharedir.create(arguments.dir, quota)


def run_set(arguments: argparse.Namespace) -> None:
    """`aliquot share set DIR [--memory SIZE] [--cores PERCENT]`."""
    if arguments.memory is None and arguments.cores is None:
        raise InvalidInput(field="share set", value=None, fix="want --memory, --cores or both")
    memory = None if arguments.memory is None else memory_limit(arguments.memory)
    cores = None if arguments.cores is None else cores_millipercent(arguments.cores)
    with sharedir.ShareFiles(path=arguments.dir) as files:
        files.set_quota(memory_limit_bytes=memory, cores_millipercent=cores)


def run_show(arguments: argparse.Namespace) -> None:
    """`aliquot share show DIR [--json]`."""
    with sharedir.ShareFiles(path=arguments.dir) as files:
        quota = files.quota()
        usage = region.usage(quota, files.ledger())
    shown: dict[str, str | int] = {
        "gpu": quota.gpu_uuid,
        "limit": usage.limit_bytes,
        "used": usage.used_bytes,
        "peak": usage.peak_bytes,
        "denied": usage.denied,
        "processes": usage.processes,
    }
    if arguments.json:
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    for name, value in shown.items():
        in_bytes = isinstance(value, int) and name in ("limit", "used", "peak")
        sys.stdout.write(f"{name:10} {f'{int(value) / quantity.MIB:.1f} MiB' if in_bytes else value}\n")


def memory_limit(text: str) -> int:
    """`--memory` in bytes."""
    value = quantity.parse(text, field="--memory")
    if value < quantity.MIB:
        hint = f"; did you mean {text}Mi?" if text.isdigit() else ""
        raise InvalidInput(field="--memory", value=text, fix=f"want at least 1Mi{hint}")
    return value


def cores_millipercent(percent: int) -> int:
    """`--cores` in 1/1000 percent."""
    if not 0 <= percent <= 100:
        raise InvalidInput(field="--cores", value=percent, fix="want 0 to 100 percent")
    return percent * 1000
