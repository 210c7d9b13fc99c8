# SPDX-License-Identifier: Apache-2.0
"""The two images every node has: the pods' sandbox, and a tool box made of Debian's static busybox."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from .binaries import cache_dir
from .oci import layer, write_image
from .system import TestbedError, run

PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX_IMAGE = "localhost/busybox:1"
_PAUSE_SOURCE = Path(__file__).with_name("pause.c")


def standard_images() -> list[Path]:
    """The archives of both images, made at the first call and kept in the cache."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise TestbedError("busybox is missing: apt-get install busybox-static")
    content = hashlib.sha256(_PAUSE_SOURCE.read_bytes() + Path(busybox).read_bytes()).hexdigest()[:8]
    folder = cache_dir() / f"images-{content}"
    archives = [folder / "pause.tar", folder / "busybox.tar"]
    if not all(archive.exists() for archive in archives):
        folder.mkdir(parents=True, exist_ok=True)
        _write_pause(archives[0])
        _write_busybox(archives[1], Path(busybox))
    return archives


def _write_pause(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "pause"
        run("gcc", "-static", "-Os", "-s", "-Wall", "-Werror", "-o", program, _PAUSE_SOURCE)
        write_image(archive, name=PAUSE_IMAGE, layers=[layer({"/pause": program})], entrypoint=["/pause"])


def _write_busybox(archive: Path, busybox: Path) -> None:
    applets = run(busybox, "--list").split()
    links = {f"/bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o1777)
        tools = layer({"/bin/busybox": busybox, "/tmp": Path(scratch)}, links=links)
    write_image(archive, name=BUSYBOX_IMAGE, layers=[tools], command=["/bin/sh"])
