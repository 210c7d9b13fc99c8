# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU keeps off a node with real ones."""

import subprocess
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).parents[3] / "deploy/images/simulated-gpu.sh"


def test_a_node_with_the_vendors_driver_is_refused(tmp_path: Path) -> None:
    environment = {"NODE_NAME": "n", "GPUS": "l4", "NVIDIA_PROC": str(tmp_path), "PATH": "/nowhere"}
    done = subprocess.run(
        ["/bin/sh", SCRIPT], env=environment, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 1
    assert f"this node has NVIDIA's driver ({tmp_path})" in done.stderr
