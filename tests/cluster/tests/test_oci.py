# SPDX-License-Identifier: Apache-2.0
"""Image archives: the same content gives the same bytes, and containerd runs them."""

import os
import shutil
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.oci import layer, write_image
from tests.cluster.tests.pods import busybox


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, when in ((first, 1), (second, 2)):
        (folder / "deep").mkdir(parents=True)
        for name in ("b", "a") if when == 1 else ("a", "b"):
            (folder / "deep" / name).write_text(name)
            os.utime(folder / "deep" / name, (when, when))
        write_image(tmp_path / f"{when}.tar", name="localhost/same:1", layers=[layer({"/opt": folder})])

    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_an_image_runs_with_its_layers_links_environment_and_entrypoint(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    program = shutil.which("busybox")
    assert program is not None
    base = tmp_path / "base.tar"
    base.write_bytes(layer({"/bin/busybox": Path(program)}, links={"/bin/sh": "busybox"}))
    script = b"#!/bin/sh\necho $GREETING $1\n"
    archive = tmp_path / "image.tar"
    write_image(
        archive,
        name="localhost/greeter:1",
        layers=[base, layer({"/app/greet": script})],
        entrypoint=["/app/greet"],
        command=["world"],
        env={"GREETING": "hello"},
    )
    cluster.load_image(archive)
    pod = busybox("greeter", "", restartPolicy="Never")
    del pod["spec"]["containers"][0]["command"]
    pod["spec"]["containers"][0]["image"] = "localhost/greeter:1"
    cluster.apply(pod, namespace=namespace)

    cluster.wait_for_pod("greeter", namespace, phase="Succeeded")
    assert cluster.logs("greeter", namespace) == "hello world\n"
