# SPDX-License-Identifier: Apache-2.0
"""`aliquot docker run` on a simulated machine with a real Docker engine: real containers, real shares."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.images import CLIENT, ENGINE
from tests.testkit import engine
from tests.unit.cli.test_local import FILL, MIB, SIM, Machine, ended, heard, wait

_FILL: Final = ("python3", "-c", FILL)


class Host(Machine):
    """A machine with simulated GPUs and Docker on it."""

    def __init__(self, folder: Path, *, docker_host: str) -> None:
        super().__init__(folder)
        self.environment |= {"PATH": engine.path(), "DOCKER_HOST": docker_host}

    def words(self, *options: str, memory: str = "1Gi", program: tuple[str, ...] = _FILL) -> list[str]:
        """aliquot docker run, with the simulated driver in the container."""
        driver = (f"--volume={SIM}:/sim:ro", f"--volume={self.node}:/node", "--env=LD_LIBRARY_PATH=/sim")
        given = ("--rm", *driver, "--env=ALIQUOT_SIM_ROOT=/node", *options, CLIENT, *program)
        return ["docker", "run", "--memory", memory, "--cores", "30", "--access", "none", "--", *given]

    def docker(self, *words: str) -> str:
        return subprocess.run(
            ["docker", *words],
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()


@pytest.fixture(scope="module")
def docker_host() -> Iterator[str]:
    with engine.running(ENGINE):
        yield engine.address(ENGINE)


@pytest.fixture
def host(tmp_path: Path, docker_host: str) -> Host:
    return Host(tmp_path, docker_host=docker_host)


def share_of(host: Host) -> dict[str, Any]:
    [run] = host.ps()
    [share] = run["shares"]
    return dict(share)


def test_a_container_has_its_share_and_ps_shows_it(host: Host) -> None:
    container = host.start(*host.words("--interactive"))
    assert heard(container) == "1024 1024"
    share = share_of(host)
    assert (share["limit"], share["used"], share["denied"]) == (1024 * MIB, 1024 * MIB, 1)
    assert (share["processes"], share["cores"]) == (1, 30)
    assert ended(container) == 0
    assert host.ps() == []
    assert host.runs_on_disk() == []


def test_the_limit_cannot_be_written_to_from_a_container(host: Host) -> None:
    spoil = "echo spoilt > $(echo /run/aliquot/shares/*/quota); head -c 8 /run/aliquot/shares/*/quota; exit 7"
    container = host.start(*host.words(program=("sh", "-c", spoil)))
    said, complained = container.communicate(timeout=60)
    assert said == "ALIQUOTQ"
    assert "Read-only file system" in complained
    assert container.returncode == 7


def test_a_signal_reaches_the_container_and_its_status_is_ours(host: Host) -> None:
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    container = host.start(*host.words(program=("python3", "-c", program)))
    assert heard(container) == "ready"
    container.send_signal(signal.SIGTERM)
    assert ended(container) == 9


def test_a_detached_container_keeps_its_share_until_it_ends(host: Host) -> None:
    name = f"aliquot-test-{host.folder.name}"
    host.aliquot(*host.words("--detach", f"--name={name}", program=("sleep", "600")))
    assert share_of(host)["limit"] == 1024 * MIB  # though no program has used the GPU yet
    host.docker("kill", name)
    wait(lambda: host.ps() == [], "the share of a container that has ended to be cleared away")


def test_a_container_gets_the_gpu_by_dockers_own_option(host: Host) -> None:
    words = [*host.words()]
    words[words.index("none")] = "gpus"
    said = host.aliquot(*words, status=125)  # this engine has no NVIDIA runtime
    assert 'could not select device driver "" with capabilities: [[gpu]]' in said
    assert host.ps() == []
