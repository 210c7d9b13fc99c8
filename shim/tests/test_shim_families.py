# SPDX-License-Identifier: Apache-2.0
"""Every family of device memory, step by step: the shim's books are the driver's own, to the byte.

clients/families.c walks through a family. The same walk without the shim must give the same results.
"""

from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.conftest import Clients
from shim.tests.sandbox import MIB, TIMEOUT_S, Sandbox

LIMIT: Final = 8192 * MIB
LATE: Final = frozenset({"closed", "gone"})
"""Steps that the shim is not told of, or after which it goes on counting: too much until the next one."""
IN_FULL: Final = frozenset({"managed", "code"})
"""Families that count in full, wherever their pages are."""
PAGE: Final = 2 * MIB

FAMILIES: Final = (
    "default_pool",
    "own_pools",
    "destroyed_pool",
    "vmm",
    "many_mappings",
    "exported",
    "multicast",
    "linear",
    "freed_late",
    "contexts",
    "limits",
    "green",
    "managed",
    "arrays",
    "graphs",
    "captured",
    "ipc",
    "external",
    "checkpointed",
    "attached",
    "code",
)


def walk(
    node: Sandbox, program: str, family: str, *, share: Path | None
) -> tuple[list[str], list[tuple[str, int, int]]]:
    """Steps with their results; and where books differ: step, the shim's bytes, the driver's."""
    steps: list[str] = []
    differences = []
    process = node.start(program, family, bare=share is None)
    assert process.stdin is not None
    assert process.stdout is not None
    for line in process.stdout:
        steps.append(line.strip())
        if share is not None:
            # The driver packs small allocations into whole pages.
            ours, theirs = -(-shares.usage(share).used_bytes // PAGE) * PAGE, taken(node)
            late = line.partition(":")[0] in LATE or family in IN_FULL
            if ours < theirs or (ours > theirs and not late):
                differences.append((f"{len(steps)}. {steps[-1]}", ours, theirs))
        process.stdin.write("\n")
        process.stdin.flush()
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return steps, differences


def taken(node: Sandbox) -> int:
    """What the GPU gives to the container's processes, without their contexts."""
    books = node.books()
    bytes_ = sum(int(group["used"]) for group in books["groups"] if group["group"] == node.group)
    contexts = sum(int(process["contexts"]) for process in books["processes"])
    return bytes_ - contexts * int(books["gpus"][0]["context"])


@pytest.mark.parametrize("family", FAMILIES)
def test_books_are_the_drivers_own_at_every_step(tmp_path: Path, clients: Clients, family: str) -> None:
    node = Sandbox(folder=tmp_path)
    node.start_node("h200")
    program = clients.linked("families", "families_memory", "families_work", "families_share")
    bare, _ = walk(node, program, family, share=None)
    share = shares.make(node, gpu=node.gpu(), limit=LIMIT)
    steps, differences = walk(node, program, family, share=share)
    assert steps == bare, "the same results as without the shim"
    assert differences == []
    assert len(steps) > 3
    assert shares.usage(share).used_bytes == 0, "the process is gone"
