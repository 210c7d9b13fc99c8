# SPDX-License-Identifier: Apache-2.0
"""Build hook of hatchling: gRPC stubs beside our protos (as a script: only these), the library for tenants.

The stubs are build products, ignored by git. They register in the descriptor pool under their path
below `node-agent/`, so that two protocols' files never collide.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def generate(root: Path) -> list[Path]:
    """Compiles every proto below `root`/aliquot_agent/kubeletapi; answers the protos compiled."""
    protos = sorted((root / "aliquot_agent" / "kubeletapi").rglob("*.proto"))
    if not protos:
        raise FileNotFoundError(f"no *.proto below {root}/aliquot_agent/kubeletapi")
    arguments = [f"--{kind}_out={root}" for kind in ("python", "pyi", "grpc_python")]
    status = protoc.main(["protoc", f"--proto_path={root}", *arguments, *map(str, protos)])
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")
    return protos


def carried(folder: Path) -> dict[str, str]:
    """Where a wheel carries `folder`/MACHINE/libaliquot.so: in the agent's package, named by its content.

    aliquot_agent.library finds it there.
    """
    libraries = sorted(folder.glob("*/libaliquot.so"))
    if not libraries:
        raise FileNotFoundError(f"no MACHINE/libaliquot.so in {folder}: run `make shim-release`")
    return {
        str(path): f"aliquot_agent/lib/{path.parent.name}/{digest[:16]}/{path.name}"
        for path in libraries
        for digest in (hashlib.sha256(path.read_bytes()).hexdigest(),)
    }


class StubsHook(BuildHookInterface[Any]):
    """Runs `generate` before a wheel, a source distribution or an editable install is built.

    A wheel carries the libraries of the folder that ALIQUOT_LIBRARIES names, if it is set.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling."""
        generate(Path(self.root) / "node-agent")
        libraries = os.environ.get("ALIQUOT_LIBRARIES")
        if libraries and self.target_name == "wheel" and version != "editable":
            build_data["force_include"].update(carried(Path(libraries)))


if __name__ == "__main__":
    for proto in generate(Path(__file__).resolve().parent):
        sys.stdout.write(f"{proto}\n")
