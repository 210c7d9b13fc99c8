# SPDX-License-Identifier: Apache-2.0
"""What is in the images, and what must not be; that they run with no shell in them; what their bills say."""

import functools
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

import pytest
from docker import DockerClient
from packaging.requirements import Requirement

from deploy.images import contents, sbom
from deploy.images.assemble import COMMANDS, NOT_IMPORTED, PACKAGES
from tests.system.images import AGENT, BUILD, BUILDER, ENGINE, IMAGES, ROOT, WEBHOOK
from tests.system.test_docs import run_in
from tests.testkit import engine

RECORD: Final = f"{contents.OURS}/*.dist-info/RECORD"
PARTS: Final = ("webhook", "agent")
COMMANDS_OF: Final = {"webhook": ("aliquot-controller", "aliquot-webhook"), "agent": ("aliquot-agent",)}
_WITHOUT_SHELL: Final = """
import glob, importlib, os, pkgutil, subprocess, sys
for shell in glob.glob("/bin/*sh"):
    os.remove(shell)
packages, commands = (words.split(",") for words in sys.argv[1:])
for command in commands:
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
for package in packages:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def docker_engine() -> Iterator[DockerClient]:
    with engine.running(ENGINE) as client:
        yield client


@functools.cache
def image(name: str) -> contents.Image:
    return contents.read(IMAGES / f"{name}.tar", wanted=(*sbom.WANTED, RECORD))


def added(name: str) -> dict[str, int]:
    """What the image has beyond its base, which is one layer here: size by path."""
    return {path: size for layer in image(name).layers[1:] for path, size in layer.items()}


@functools.cache
def bill(name: str) -> Any:
    """The bill of materials that was written beside the image."""
    return json.loads((IMAGES / f"{name}.cdx.json").read_text())


@pytest.mark.parametrize(("name", "most_mb"), [("webhook", 120), ("agent", 150)])
def test_what_we_add_to_the_base_is_small(name: str, most_mb: int) -> None:
    assert 10 < sum(added(name).values()) / 1e6 <= most_mb


@pytest.mark.parametrize("name", PARTS)
def test_production_images_hold_no_simulated_gpu(name: str) -> None:
    simulated = ("aliquot-sim", "aliquot-smi", "libcuda.so", "libnvidia-ml.so", "mps-control")
    assert not [file for file in image(name).files if any(word in file for word in simulated)]


def test_the_simulated_gpu_is_an_image_of_its_own() -> None:
    assert {"/opt/aliquot-sim/libcuda.so.1", "/opt/aliquot-sim/aliquot-sim"} <= set(image("sim").files)


@pytest.mark.parametrize(("name", "libraries"), [("webhook", 0), ("agent", 1), ("sim", 0)])
def test_only_the_agents_image_holds_the_library_for_tenants(name: str, libraries: int) -> None:
    found = [file for file in image(name).files if PurePosixPath(file).name.startswith("libaliquot")]
    assert len(found) == libraries
    assert all(f"/{platform.machine()}/" in file for file in found)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_its_own_packages_and_commands_only(name: str) -> None:
    inside = {PurePosixPath(file).relative_to(contents.OURS).parts[0] for file in _site(name)}
    assert {each for each in inside if each.startswith("aliquot_")} == set(PACKAGES[name])
    assert not inside & {"pip", "setuptools", "wheel", "bin"}
    others = set(added(name)) - set(_site(name))
    assert others == {f"/{COMMANDS}/{command}" for command in COMMANDS_OF[name]}


@pytest.mark.parametrize(("name", "user"), [("webhook", "65532:65532"), ("agent", "")])
def test_only_the_agent_runs_as_root(name: str, user: str) -> None:
    assert image(name).config["User"] == user
    assert image(name).config["Entrypoint"] == [f"aliquot-{name}"]


@pytest.mark.parametrize("name", PARTS)
def test_the_bill_names_what_the_lock_names(name: str) -> None:
    lines = (ROOT / f"deploy/images/{name}.lock").read_text().splitlines()
    locked = [Requirement(line.rstrip(" \\")) for line in lines if "==" in line]
    wanted = {each.name: str(each.specifier) for each in locked if not each.marker or each.marker.evaluate()}
    found = {
        match[1]: f"=={match[2]}"
        for each in bill(name)["components"]
        if (match := re.fullmatch("pkg:pypi/(.+)@(.+)", each.get("purl", "")))
    }
    assert found.pop("aliquot")
    assert found == {each: version for each, version in wanted.items() if each not in NOT_IMPORTED}


@pytest.mark.parametrize("name", PARTS)
def test_every_file_belongs_to_something_on_the_bill(name: str) -> None:
    listed = {each["name"] for each in bill(name)["components"]}
    named = {str(file) for each, files in _records(name) if each in listed for file in files}
    sources = {re.sub(r"__pycache__/(.+)\.cpython-\d+\.pyc$", r"\1.py", file) for file in _site(name)}
    assert sources
    assert not sources - named


@pytest.mark.parametrize("name", ["webhook", "agent", "sim"])
def test_the_bill_names_the_packages_below(name: str) -> None:
    found = {each["name"]: each.get("purl", "") for each in bill(name)["components"]}
    assert re.fullmatch(r"pkg:deb/(debian|ubuntu)/libc6@[^?]+\?arch=\w+&distro=\w+", found["libc6"])
    assert {"ca-certificates", "libstdc++6", "python3"} <= set(found)


@pytest.mark.parametrize(("name", "tag"), [("webhook", WEBHOOK), ("agent", AGENT)])
def test_an_image_runs_with_no_shell_in_it(docker_engine: DockerClient, name: str, tag: str) -> None:
    docker_engine.containers.run(
        tag,
        entrypoint=["python3", "-c", _WITHOUT_SHELL],
        command=[",".join(PACKAGES[name]), ",".join(COMMANDS_OF[name])],
        user="0:0",  # which may remove the shells
        network_mode="none",
        remove=True,
    )


def test_the_commands_of_the_page_work(docker_engine: DockerClient) -> None:
    docker_engine.images.get(BUILDER).tag("python", "3.13-slim")  # which a registry would give
    path = f"{engine.path()}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DOCKER_HOST": engine.address(ENGINE)}
    run_in(environment, "docs/images.md", which=slice(1, None))  # the first is `make`, which was run before
    made = json.loads((BUILD / "agent-image.cdx.json").read_text())
    assert {"aliquot", "libaliquot.so"} <= {each["name"] for each in made["components"]}


def _site(name: str) -> list[str]:
    return [file for file in added(name) if contents.OURS in PurePosixPath(file).parents]


def _records(name: str) -> Iterator[tuple[str, list[PurePosixPath]]]:
    """The name of each distribution, and the files that it says are its own."""
    for path, content in image(name).texts.items():
        if PurePosixPath(path).match(RECORD):
            folder = PurePosixPath(path).parent
            about = image(name).texts[f"{folder}/METADATA"].decode()
            found = re.search(r"^Name: (.+)$", about, re.MULTILINE)
            assert found
            files = [line.rsplit(",", 2)[0].strip('"') for line in content.decode().splitlines()]
            yield found[1], [folder.parent / file for file in files]
