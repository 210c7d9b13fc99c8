# SPDX-License-Identifier: Apache-2.0
"""The script for a real GPU, tried on the simulated one: it runs, and the shim changes no answer."""

import json
import subprocess
from pathlib import Path

from shim.tests.sandbox import PYTHON, ROOT


def test_the_script_for_a_real_gpu_runs_here_and_sees_the_driver_through_the_shim(tmp_path: Path) -> None:
    output = tmp_path / "answers.json"
    sections = ("environment", "assumptions", "pytorch", "company")
    command = [PYTHON, "-m", "tests.gpu", "--simulated", "--output", str(output), "--only", *sections]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads(output.read_text("utf-8"))
    assert answers["environment"]["libcuda"] == {
        "symbolic": True, "versioned": False, "symtab_writable": False
    }  # fmt: skip
    found = answers["assumptions"]
    assert not [name for name, answer in found["bare"].items() if "failed" in str(answer)]
    # What a context counts is measured by the agent, which does not run here.
    assert set(found["otherwise under the shim"]) <= {"context_size"}
    assert found["lookup"]["elsewhere"] == {}
    for how in ("by prices", "corrected"):
        assert answers["company"][how]["30 %"] < answers["company"][how]["70 %"], answers["company"]
    assert answers["company"]["30 % beside idle 70 %"] > answers["company"]["corrected"]["30 %"]
    assert "real GPU" in answers["pytorch"]["skipped"]
