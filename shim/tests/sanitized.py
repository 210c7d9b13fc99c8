# SPDX-License-Identifier: Apache-2.0
"""python -m shim.tests.sanitized [TEST…]: the suites with a shim that sanitizers watch.

Each sanitizer builds the shim anew and is preloaded before it, into the same clients. A report anywhere, in
whatever process, is a failure; and so is none where a fault was planted (planted.c).
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shim.tests.sandbox import BUILD, ROOT

_TIMEOUT_S: Final = 3600
_TEST_TIMEOUT_S: Final = 1200


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """How to build with it, preload it, and tell it where to report."""

    flags: str
    libraries: tuple[str, ...]
    options: dict[str, str]
    suites: tuple[str, ...]
    planted: tuple[str, ...]
    """Faults that it has to find."""


_SUITES: Final = (
    *("memory", "contexts", "estimates", "families", "processes"),
    *("nvml", "nvml_processes", "fail_closed", "log"),
)
_SANITIZERS: Final = {
    "address": Sanitizer(
        flags="address,undefined",
        libraries=("libasan.so", "libubsan.so"),
        # What lives until the end of a process lives on purpose; a limit on memory maps is not ours to test.
        options={"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1"},
        suites=_SUITES,
        planted=("overflow", "undefined"),
    ),
    "thread": Sanitizer(
        flags="thread",
        libraries=("libtsan.so",),
        # The ledger is shared between processes, which the sanitizer cannot see.
        options={"TSAN_OPTIONS": "exitcode=99:report_signal_unsafe=0"},
        suites=("memory", "contexts", "estimates", "processes", "pools", "references", "threads"),
        planted=("race",),
    ),
}


def _library(name: str) -> str:
    """Path of the compiler's run-time library."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return str(Path(found.stdout.strip()).resolve())


def _make(name: str, sanitizer: Sanitizer, target: str) -> Path:
    """Builds `target` of shim/Makefile with the sanitizer."""
    build = BUILD / f"shim-{name}"
    settings = [f"BUILD={build}", f"SANITIZE={sanitizer.flags}", "LTO=", "CFLAGS=-O1 -g"]
    command = ["make", "-s", "-C", str(ROOT / "shim"), *settings, str(build / target)]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    return build / target


def _watched(
    sanitizer: Sanitizer, library: Path, tests: list[str], *, quietly: bool = False
) -> tuple[bool, dict[str, str]]:
    """Whether the tests pass with that library, and the sanitizer's reports."""
    with tempfile.TemporaryDirectory() as reports:
        env = dict(os.environ)
        env |= {key: f"{value}:log_path={reports}/report" for key, value in sanitizer.options.items()}
        env |= {
            "ALIQUOT_TEST_SHIM": str(library),
            "ALIQUOT_TEST_SANITIZER": " ".join(map(_library, sanitizer.libraries)),
        }
        command = [sys.executable, "-m", "pytest", "-q", f"--timeout={_TEST_TIMEOUT_S}", *tests]
        output = subprocess.DEVNULL if quietly else None
        run = subprocess.run(command, cwd=ROOT, env=env, timeout=_TIMEOUT_S, check=False, stdout=output)
        found = {path.name: path.read_text(errors="replace") for path in sorted(Path(reports).iterdir())}
    return run.returncode == 0, found


def _finds(name: str, sanitizer: Sanitizer, fault: str) -> bool:
    library = _make(name, sanitizer, f"planted-{fault}.so")
    test = f"{ROOT}/shim/tests/test_shim_memory.py::test_last_byte_fits_and_the_next_does_not"
    passed, reports = _watched(sanitizer, library, [test], quietly=True)
    found = bool(reports) or not passed  # undefined behaviour ends the process, with a report on stderr
    sys.stdout.write(f"{name} sanitizer: planted {fault} {'found' if found else 'NOT FOUND'}\n")
    return found


def _run(name: str, sanitizer: Sanitizer, tests: list[str]) -> bool:
    if not all(_finds(name, sanitizer, fault) for fault in sanitizer.planted):
        return False
    chosen = tests or [str(ROOT / "shim" / "tests" / f"test_shim_{suite}.py") for suite in sanitizer.suites]
    passed, found = _watched(sanitizer, _make(name, sanitizer, "libaliquot.so"), chosen)
    for report, text in found.items():
        sys.stdout.write(f"--- {name} sanitizer, {report}\n{text}\n")
    sys.stdout.write(f"{name} sanitizer: {'passed' if passed else 'FAILED'}, {len(found)} reports\n")
    return passed and not found


def main() -> int:
    results = [_run(name, sanitizer, sys.argv[1:]) for name, sanitizer in _SANITIZERS.items()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
