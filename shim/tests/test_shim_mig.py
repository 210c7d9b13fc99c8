# SPDX-License-Identifier: Apache-2.0
"""A share of a MIG device: found by the device's own UUID, held like a share of a GPU."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shim.tests import shares
from shim.tests.probe import OUT_OF_MEMORY, Probe
from shim.tests.sandbox import MIB, Sandbox

Start = Callable[..., Probe]
LIMIT = 1024 * MIB


@pytest.fixture
def devices(tmp_path: Path) -> tuple[Sandbox, list[str]]:
    """A container on an A100 with two MIG devices; it may use either."""
    node = Sandbox(folder=tmp_path)
    node.start_node("a100-40gb")
    node.tool("mig", "on", "--gpu", "0")
    for _ in range(2):
        node.tool("mig", "create", "--gpu", "0", "--profile", "1g.5gb")
    (gpu,) = json.loads(node.tool("mig", "list", "--json"))["gpus"]
    return node, [instance["devices"][0]["uuid"] for instance in gpu["instances"]]


def test_a_share_of_a_mig_device_is_held(devices: tuple[Sandbox, list[str]], start: Start) -> None:
    node, (own, other) = devices
    cost = node.context_bytes()
    shares.make(node, gpu=own.replace("MIG-", "GPU-"), limit=LIMIT, estimate=cost)
    probe = start(node, env=node.environment() | {"CUDA_VISIBLE_DEVICES": own})
    probe.begin()
    probe.alloc(LIMIT - cost)
    assert probe.alloc(2 * MIB)[0] == OUT_OF_MEMORY
    probe.ok("nvmlInit_v2")
    probe.reset(40)
    parent = probe.ok("nvmlDeviceGetHandleByIndex_v2", 0, "&40").cells[40]
    probe.reset(40)
    part = probe.ok("nvmlDeviceGetMigDeviceHandleByIndex", parent, 0, "&40").cells[40]
    assert probe.ok("nvmlDeviceGetMemoryInfo", part, "&41").cells == {41: LIMIT, 42: 0, 43: LIMIT}
    beyond = start(node, env=node.environment() | {"CUDA_VISIBLE_DEVICES": other})
    beyond.ok("cuInit", 0)
    beyond.reset(5)
    assert beyond.call("cuDevicePrimaryCtxRetain", "&5", 0).result != 0, "no share has its UUID"
