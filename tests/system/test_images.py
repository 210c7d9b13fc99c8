# SPDX-License-Identifier: Apache-2.0
"""What is in the images, and what must not be."""

import io
import json
import tarfile
from collections.abc import Iterator
from typing import IO

import pytest

from tests.system.images import IMAGES


def layers(image: str) -> Iterator[IO[bytes]]:
    """The layers of an image, the base first."""
    with tarfile.open(IMAGES / f"{image}.tar") as archive:

        def blob(digest: str) -> IO[bytes]:
            stream = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert stream is not None
            return stream

        index = archive.extractfile("index.json") or io.BytesIO()
        [manifest] = json.load(index)["manifests"]
        for layer in json.load(blob(manifest["digest"]))["layers"]:
            yield blob(layer["digest"])


def contents(image: str) -> set[str]:
    """The paths of all files of an image."""
    found: set[str] = set()
    for layer in layers(image):
        with tarfile.open(fileobj=layer) as files:
            found |= {f"/{name.removeprefix('./')}" for name in files.getnames()}
    return found


@pytest.mark.parametrize(("image", "most_mb"), [("webhook", 120), ("agent", 150)])
def test_what_we_add_to_the_base_is_small(image: str, most_mb: int) -> None:
    _, *ours = [layer.seek(0, io.SEEK_END) for layer in layers(image)]
    assert sum(ours) / 1e6 <= most_mb


@pytest.mark.parametrize("image", ["webhook", "agent"])
def test_production_images_hold_no_simulated_gpu(image: str) -> None:
    files = contents(image)
    assert f"/usr/local/bin/aliquot-{image}" in files
    simulated = ("aliquot-sim", "libcuda.so", "libnvidia-ml.so")
    assert not [file for file in files if any(name in file for name in simulated)]


def test_only_the_agents_image_holds_the_shim() -> None:
    assert "/opt/aliquot/libaliquot.so" in contents("agent")
    assert "/opt/aliquot/libaliquot.so" not in contents("webhook")


def test_the_simulated_gpu_is_an_image_of_its_own() -> None:
    assert {"/opt/aliquot-sim/libcuda.so.1", "/opt/aliquot-sim/aliquot-sim"} <= contents("sim")
