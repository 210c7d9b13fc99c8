# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m tests.cluster up|down|status|exec|logs|..."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .binaries import DEFAULT_KUBERNETES, cache_dir, ensure, helm, say
from .cluster import Cluster
from .lifecycle import clusters, release, sweep
from .spec import Layout, state_root
from .system import TestbedError, locked

_DAEMON_VERBS = ("stop", "start", "restart", "kill", "pause", "resume")
_NODE_VERBS = ("reboot", "cut", "heal", "fill-disk", "free-disk")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except TestbedError as error:
        say(str(error))
        return 1


def _up(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    cluster = Cluster.up(
        name=arguments.name,
        nodes=arguments.nodes,
        kubernetes=arguments.kubernetes,
        gates=dict(arguments.gate),
        node_disk_bytes=arguments.node_disk_bytes,
        keep=True,
        artifacts=arguments.artifacts,
    )
    say(
        f"cluster {cluster.name!r}: {len(cluster.nodes)} nodes Ready after {time.monotonic() - started:.1f} s"
    )
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    names = clusters() if arguments.all else [arguments.name]
    for name in names:
        if name not in clusters():
            say(f"there is no cluster {name!r}")
            continue
        release(Layout.of(name))
        say(f"cluster {name!r} is gone")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    del arguments
    with locked(state_root()):
        sweep()
    for name in clusters():
        cluster = Cluster.attach(name)
        state = "up" if Layout.of(name).ready.exists() else "owned by a running process"
        print(f"{name}: {state}, Kubernetes {cluster.spec.kubernetes}, KUBECONFIG={cluster.kubeconfig}")
        for daemon in cluster.daemons:
            print(f"  {daemon}: {cluster.state(daemon)}, log {cluster.log_file(daemon)}")
    return 0


def _exec(arguments: argparse.Namespace) -> int:
    cluster = Cluster.attach(arguments.name)
    program, *rest = arguments.argv or [os.environ.get("SHELL", "/bin/sh")]
    if arguments.node:
        os.execvp("nsenter", [*cluster.enter(arguments.node), program, *rest])
    environment = cluster.environment()
    found = shutil.which(program, path=environment["PATH"])
    if found is None:
        raise TestbedError(f"{program} is not on PATH")
    os.execve(found, [program, *rest], environment)


def _logs(arguments: argparse.Namespace) -> int:
    print(Cluster.attach(arguments.name).log_file(arguments.daemon).read_text(errors="replace"), end="")
    return 0


def _collect(arguments: argparse.Namespace) -> int:
    Cluster.attach(arguments.name).collect(arguments.folder)
    say(f"logs and objects are in {arguments.folder}")
    return 0


def _load_image(arguments: argparse.Namespace) -> int:
    Cluster.attach(arguments.name).load_image(*arguments.archive)
    return 0


def _build(arguments: argparse.Namespace) -> int:
    found = ensure(arguments.kubernetes)
    say(f"Kubernetes {arguments.kubernetes} is in {found.kubernetes}, builds are kept in {cache_dir()}")
    return 0


def _helm(arguments: argparse.Namespace) -> int:
    del arguments
    print(helm())
    return 0


def _fault(arguments: argparse.Namespace) -> int:
    method = getattr(Cluster.attach(arguments.name), arguments.command.replace("-", "_"))
    method(arguments.target)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description="A real Kubernetes on this machine, for tests."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *, named: bool = True
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        if named:
            added.add_argument("--name", default="main", help="which cluster (default: main)")
        return added

    up = command("up", _up, "make a cluster, and say how to reach it")
    up.add_argument("--nodes", type=int, default=1, help="how many nodes (default: 1)")
    up.add_argument(
        "--gate", type=_gate, action="append", default=[], metavar="NAME=BOOL", help="a feature gate"
    )
    up.add_argument("--node-disk-bytes", type=int, help="gives each node's /var/lib a disk of that size")
    up.add_argument("--artifacts", type=Path, help="a folder for the logs, if the cluster does not come up")
    build = command("build", _build, "find or build the programs a cluster needs", named=False)
    command("helm", _helm, "find or build Helm, and print where it is", named=False)
    for versioned in (up, build):
        versioned.add_argument(
            "--kubernetes", default=DEFAULT_KUBERNETES, help=f"the version (default: {DEFAULT_KUBERNETES})"
        )
    down = command("down", _down, "take a cluster down to the last trace")
    down.add_argument("--all", action="store_true", help="take all clusters down")
    command("status", _status, "list the clusters and their daemons", named=False)
    execute = command("exec", _exec, "run a command (or your shell) with KUBECONFIG and kubectl at hand")
    execute.add_argument("--node", help="run it on that node instead")
    execute.add_argument("argv", nargs="*", metavar="-- COMMAND", help="for example: -- kubectl get pods -A")
    logs = command("logs", _logs, "print a daemon's log")
    logs.add_argument("daemon", help="for example: apiserver, node-1/kubelet")
    gather = command("collect", _collect, "store all logs and objects in a folder")
    gather.add_argument("folder", type=Path)
    load = command("load-image", _load_image, "import image archives (OCI or docker save) on all nodes")
    load.add_argument("archive", type=Path, nargs="+")
    for verb in _DAEMON_VERBS:
        command(verb, _fault, f"{verb} a daemon").add_argument("target", metavar="DAEMON")
    for verb in _NODE_VERBS:
        command(verb, _fault, f"{verb.replace('-', ' ')} of a node").add_argument("target", metavar="NODE")
    return parser


def _gate(text: str) -> tuple[str, bool]:
    name, _, value = text.partition("=")
    if value.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=true or NAME=false")
    return name, value.lower() == "true"


if __name__ == "__main__":
    sys.exit(main())
