# SPDX-License-Identifier: Apache-2.0
"""MIG on a simulated node, by its tool."""

import json
import subprocess
import sys
from typing import Any

from shim.sim.tests.simnode import Node


def mig(node: Node, *arguments: str) -> None:
    done = node.tool("mig", *arguments)
    assert done.returncode == 0, done.stderr


def partition(node: Node, *profiles: str, gpu: str = "0", compute: str = "") -> None:
    """Turns MIG on and makes an instance of each profile, with compute instances."""
    mig(node, "on", "--gpu", gpu)
    for profile in profiles:
        extra = ("--compute", compute) if compute else ()
        mig(node, "create", "--gpu", gpu, "--profile", profile, *extra)


def instances(node: Node, gpu: int = 0) -> Any:
    shown = node.tool("mig", "list", "--gpu", str(gpu), "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)["gpus"][0]["instances"]


def uuids(node: Node, gpu: int = 0) -> list[str]:
    """Of all MIG devices, in their order."""
    return [device["uuid"] for instance in instances(node, gpu) for device in instance["devices"]]


def nvml(node: Node, script: str) -> Any:
    """What nvidia-ml-py answers: `out` of a script that has it as `n` and the first GPU as `h`."""
    program = (
        "import json, os, pynvml as n\n"
        "def code(call, *arguments):\n"
        "    try:\n"
        "        call(*arguments)\n"
        "    except n.NVMLError as error:\n"
        "        return error.value\n"
        "    return 0\n"
        "n.nvmlInit()\n"
        "h = n.nvmlDeviceGetHandleByIndex(0)\n"
        f"{script}\n"
        "print(json.dumps(out, default=lambda number: number.value))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=node.environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
