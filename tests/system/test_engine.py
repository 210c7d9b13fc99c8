# SPDX-License-Identifier: Apache-2.0
"""The Docker engine that builds the images leaves nothing, also when its run is killed."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import docker

from tests.cluster.cgroups import Cgroups
from tests.cluster.system import wait_until
from tests.system.images import ROOT
from tests.testkit import engine

_HOLD: Final = """
import sys, time
from pathlib import Path
from tests.testkit import engine
with engine.running(Path(sys.argv[1])):
    print("up", flush=True)
    time.sleep(600)
"""


def traces(folder: Path) -> Sequence[str]:
    """Processes, cgroups and mounts that name the folder of an engine."""
    files = (*Path("/proc").glob("[0-9]*/cmdline"), Path("/proc/self/mountinfo"))
    lines = (line for file in files for line in text(file).splitlines() if str(folder) in line)
    return [*lines, *map(str, Cgroups(cluster=engine.name(folder)).leftovers())]


def text(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # a process that ended meanwhile
        return ""


def test_an_engine_ends_with_its_block_and_keeps_what_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    with engine.running(folder) as client:
        assert traces(folder)
        (tmp_path / "empty.tar").write_bytes(bytes(10240))
        client.api.import_image_from_file(str(tmp_path / "empty.tar"), repository="empty", tag="1")
    assert not traces(folder)
    with engine.running(folder) as client:
        assert [image.tags for image in client.images.list()] == [["empty:1"]]
    assert not traces(folder)


def test_an_engine_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    argv = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
    wait_until(
        lambda: not [line for line in traces(folder) if "dockerd" in line],
        what="the engine to end",
        timeout_s=30,
    )
    with engine.running(folder) as client:
        assert isinstance(client, docker.DockerClient)
        assert client.ping()
    assert not traces(folder)
