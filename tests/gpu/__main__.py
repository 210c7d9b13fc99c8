# SPDX-License-Identifier: Apache-2.0
"""python -m tests.gpu: all experiments on this machine's first GPU; answers in build/gpu/answers.json."""

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from shim.tests.sandbox import ROOT
from tests.gpu import container
from tests.gpu.sections import SECTIONS, Skipped

LONGEST_S: Final = 600


def main() -> int:
    """Runs the sections that still fit; 0 if each that ran came to an end."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument(
        "--simulated", action="store_true", help="on a simulated H200: tries the script itself"
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "gpu" / "answers.json", metavar="FILE"
    )
    arguments = parser.parse_args()
    with ExitStack() as stack:
        if arguments.simulated:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            where: container.Container = stack.enter_context(container.simulated(Path(folder)))
        else:
            try:
                where = stack.enter_context(container.real())
            except container.GpuError as error:
                sys.stderr.write(f"tests.gpu: {error}\n")
                return 2
        answers = _run(where, arguments.only)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(answers, indent=2) + "\n", "utf-8")
    return int(any("failed" in each for each in answers.values()))


def _run(where: container.Container, chosen: list[str]) -> dict[str, dict[str, Any]]:
    """One section after the other; a failure is an answer, too."""
    begin = time.monotonic()
    answers: dict[str, dict[str, Any]] = {}
    for name in chosen:
        if time.monotonic() - begin > LONGEST_S:
            answers[name] = {"skipped": f"{LONGEST_S} s are over"}
        else:
            try:
                found = SECTIONS[name](where)
                answers[name] = {"skipped": found.missing} if isinstance(found, Skipped) else dict(found)
            except Exception as error:  # noqa: BLE001 - one experiment's failure must not cost the others
                answers[name] = {"failed": f"{type(error).__name__}: {error}"}
        sys.stdout.write(f"{time.monotonic() - begin:6.1f} s {name}: {json.dumps(answers[name])}\n")
        sys.stdout.flush()
    return answers


if __name__ == "__main__":
    sys.exit(main())
