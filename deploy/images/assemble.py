# SPDX-License-Identifier: Apache-2.0
"""Lays out what an image holds, run by the Python of the image in the first stage of the Dockerfiles.

    assemble.py libraries LOCK INTO         the locked libraries, by hash, without what nobody here imports
    assemble.py program PART WHEELS INTO    the packages of one part, and its commands

The standard library and pip only: nothing else is there yet. The same input gives the same files.
"""

import compileall
import platform
import py_compile
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from os import utime
from pathlib import Path
from typing import Final

SITE: Final = "opt/aliquot/site"
COMMANDS: Final = "usr/local/bin"
PACKAGES: Final = {
    "webhook": ("aliquot_api", "aliquot_webhook", "aliquot_controller"),
    "agent": ("aliquot_api", "aliquot_agent"),
}
"""The packages of the wheel that each part runs."""
NOT_IMPORTED: Final = (
    *("aiohttp", "aiohttp-retry", "aiohappyeyeballs", "aiosignal", "attrs"),
    *("frozenlist", "multidict", "propcache", "yarl"),
)
"""Distributions that only the asynchronous client of Kubernetes wants, which we do not use."""
_NOT_IMPORTED_PARTS: Final = ("bin", "kubernetes/aio", "websocket/tests", "certifi/tests")


def libraries(*, lock: Path, into: Path) -> None:
    """Installs what `lock` names below `into`."""
    site = into / SITE
    _pip("--only-binary=:all:", "--require-hashes", "--requirement", str(lock), "--target", str(site))
    for each in distributions(path=[str(site)]):
        if each.metadata["Name"].replace("_", "-") in NOT_IMPORTED:
            for file in each.files or ():
                Path(str(file.locate())).unlink(missing_ok=True)
    for part in _NOT_IMPORTED_PARTS:
        shutil.rmtree(site / part, ignore_errors=True)
    _finish(into)


def program(*, part: str, wheels: Path, into: Path) -> None:
    """Installs what `part` runs of the one wheel of ours in `wheels`, and its commands, below `into`."""
    found = sorted(wheels.glob("aliquot-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"want one wheel of Aliquot in {wheels}, not {len(found)}: run `make wheel`")
    site = into / SITE
    _pip("--no-deps", "--no-index", "--target", str(site), str(found[0]))
    [ours] = distributions(path=[str(site)])
    for package in site.glob("aliquot_*/"):
        if package.name not in PACKAGES[part]:
            shutil.rmtree(package)
    for machine in site.glob("aliquot_agent/lib/*"):
        if machine.name != platform.machine():
            shutil.rmtree(machine)
    shutil.rmtree(site / "bin", ignore_errors=True)
    commands = into / COMMANDS
    commands.mkdir(parents=True)
    for entry in ours.entry_points:
        if entry.module.partition(".")[0] in PACKAGES[part]:
            script = commands / entry.name
            script.write_text(
                f"#!{sys.executable}\nimport sys\n\nfrom {entry.module} import {entry.attr}\n\n"
                f"sys.exit({entry.attr}())\n",
                encoding="utf-8",
            )
            script.chmod(0o755)
    _finish(into)


def _finish(into: Path) -> None:
    """Compiles what is below `into` for its place in the image, drops empty folders, gives all one date."""
    compiled = compileall.compile_dir(
        into / SITE,
        quiet=1,
        workers=0,
        stripdir=str(into),
        prependdir="/",
        # The root file system is read-only, and files carry no time: by hash, which nobody has to check.
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not compiled:
        raise SystemExit("some library does not compile: see above")
    for path in sorted(into.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        else:
            utime(path, (0, 0), follow_symlinks=False)
    for path in [into, *into.rglob("*/")]:
        utime(path, (0, 0))


def _pip(*arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile", "--root-user-action=ignore")
    done = subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["libraries", lock, into]:
            libraries(lock=Path(lock), into=Path(into))
        case ["program", part, wheels, into] if part in PACKAGES:
            program(part=part, wheels=Path(wheels), into=Path(into))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
