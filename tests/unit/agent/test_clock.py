# SPDX-License-Identifier: Apache-2.0
"""The wall clock may jump. It is for people (time stamps) and for files' ages, never for waiting."""

import re
from pathlib import Path

AGENT = Path(__file__).resolve().parents[3] / "node-agent/aliquot_agent"
MAY = {
    "keeper.py": "the age of the checkpoints' last change",
    "healthservice.py": "kubelet wants seconds since 1970",
    "library.py": "the age of a folder that nobody uses",
}


def test_nothing_that_waits_asks_the_wall_clock() -> None:
    asked = {
        path.name
        for path in AGENT.glob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|datetime\.now\(\)|utcnow", path.read_text())
    }
    assert asked == set(MAY)
