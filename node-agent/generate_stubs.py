# SPDX-License-Identifier: Apache-2.0
"""Generates gRPC stubs beside our protos: build hook of hatchling, and a script.

The stubs are build products, ignored by git. They register in the descriptor pool under their path
below `node-agent/`, so that two protocols' files never collide.
"""

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


class StubsHook(BuildHookInterface[Any]):
    """Runs `generate` before a wheel, a source distribution or an editable install is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling."""
        generate(Path(self.root) / "node-agent")


if __name__ == "__main__":
    for proto in generate(Path(__file__).resolve().parent):
        sys.stdout.write(f"{proto}\n")
