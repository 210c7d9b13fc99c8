# SPDX-License-Identifier: Apache-2.0
"""A paced program meets the driver that it knows: same codes, no call of ours that shows, nothing left."""

import subprocess
import time
from pathlib import Path

from shim.tests.compute.nodes import Node, Share
from shim.tests.sandbox import ROOT, Sandbox


def test_arithmetic_of_shares_and_prices(tmp_path: Path) -> None:
    here, sources = Path(__file__).resolve().parent, ROOT / "shim" / "src"
    program = tmp_path / "pure"
    subprocess.run(
        [
            *("cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"),
            *(f"-I{sources}", f"-I{sources.parent / 'include'}", "-o", str(program)),
            *(str(here / "pure.c"), str(sources / "budget.c"), str(sources / "prices.c")),
        ],
        check=True,
        timeout=60,
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def paced(gpu: Node, percent: float = 50) -> tuple[Sandbox, Share]:
    share = gpu.share("a", percent)
    return gpu.sandbox("a"), share


def test_every_launch_entry_answers_bad_arguments_as_the_driver_does(gpu: Node, oddities: str) -> None:
    sandbox, _ = paced(gpu)
    bare = sandbox.run(oddities, "errors", bare=True).stdout
    assert sandbox.run(oddities, "errors").stdout == bare
    assert len(bare.split()) > 30


def test_a_launch_that_failed_costs_nothing(gpu: Node, oddities: str) -> None:
    sandbox, share = paced(gpu, 1)
    sandbox.run(oddities, "errors")
    # A guess of 1 ms was drawn once, and used again and again.
    assert share.word("granted_ns") <= 2_000_000


def test_contexts_and_modules_may_end_under_measurements(gpu: Node, oddities: str) -> None:
    sandbox, _ = paced(gpu, 90)
    done = sandbox.run(oddities, "contexts", check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_capture_is_not_spoilt_by_measuring(gpu: Node, oddities: str) -> None:
    sandbox, _ = paced(gpu, 90)
    done = sandbox.run(oddities, "captures", check=False)
    assert (done.stdout, done.returncode) == ("5\n", 0)


def test_on_borrowed_time_nobody_waits_for_a_kernel_that_waits_for_a_later_one(
    gpu: Node, oddities: str
) -> None:
    sandbox, share = paced(gpu, 30)
    share.lend(70, seconds=60)
    begin = time.monotonic()
    assert sandbox.run(oddities, "stuck").stdout == "all launched\n"
    assert time.monotonic() - begin < 15, "the kernel runs for 20 s, and each launch could wait for it"


def test_a_forked_child_is_no_tenant(gpu: Node, oddities: str) -> None:
    sandbox, _ = paced(gpu)
    assert sandbox.run(oddities, "fork", check=False).stdout == "0\n"


def test_programs_that_launch_once_and_end_pay_what_they_used(gpu: Node, oddities: str) -> None:
    sandbox, share = paced(gpu, 90)
    for _ in range(3):
        sandbox.run(oddities, "once")
    assert share.word("granted_ns") > 3 * 45_000_000
