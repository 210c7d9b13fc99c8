# SPDX-License-Identifier: Apache-2.0
"""python -m shim.tests.sanitized [TEST…]: the suites with a shim that sanitizers watch.

Each sanitizer builds the shim anew and is preloaded before it, into the same clients. A report anywhere, in
whatever process, is a failure.
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


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """How to build with it, preload it, and tell it where to report."""

    flags: str
    libraries: tuple[str, ...]
    options: dict[str, str]
    suites: tuple[str, ...]


_SUITES: Final = ("memory", "families", "processes", "nvml", "nvml_processes", "fail_closed", "log")
_SANITIZERS: Final = {
    "address": Sanitizer(
        flags="address,undefined",
        libraries=("libasan.so", "libubsan.so"),
        # What lives until the end of a process lives on purpose; a limit on memory maps is not ours to test.
        options={"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1"},
        suites=_SUITES,
    ),
    "thread": Sanitizer(
        flags="thread",
        libraries=("libtsan.so",),
        # The ledger is shared between processes, which the sanitizer cannot see.
        options={"TSAN_OPTIONS": "exitcode=99:report_signal_unsafe=0"},
        suites=("memory", "processes", "pools", "references"),
    ),
}


def _library(name: str) -> str:
    """Path of the compiler's run-time library."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return str(Path(found.stdout.strip()).resolve())


def _run(name: str, sanitizer: Sanitizer, tests: list[str]) -> bool:
    build = BUILD / f"shim-{name}"
    settings = [f"BUILD={build}", f"SANITIZE={sanitizer.flags}", "LTO=", "CFLAGS=-O1 -g"]
    subprocess.run(["make", "-s", "-C", str(ROOT / "shim"), *settings], check=True, timeout=_TIMEOUT_S)
    chosen = tests or [str(ROOT / "shim" / "tests" / f"test_shim_{suite}.py") for suite in sanitizer.suites]
    with tempfile.TemporaryDirectory() as reports:
        env = dict(os.environ)
        env |= {key: f"{value}:log_path={reports}/report" for key, value in sanitizer.options.items()}
        env |= {
            "ALIQUOT_TEST_SHIM": str(build / "libaliquot.so"),
            "ALIQUOT_TEST_SANITIZER": " ".join(map(_library, sanitizer.libraries)),
        }
        command = [sys.executable, "-m", "pytest", "-q", *chosen]
        passed = subprocess.run(command, cwd=ROOT, env=env, timeout=_TIMEOUT_S, check=False).returncode == 0
        found = sorted(Path(reports).iterdir())
        for report in found:
            sys.stdout.write(f"--- {name} sanitizer, {report.name}\n{report.read_text(errors='replace')}\n")
    sys.stdout.write(f"{name} sanitizer: {'passed' if passed else 'FAILED'}, {len(found)} reports\n")
    return passed and not found


def main() -> int:
    results = [_run(name, sanitizer, sys.argv[1:]) for name, sanitizer in _SANITIZERS.items()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
