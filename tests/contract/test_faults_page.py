# SPDX-License-Identifier: Apache-2.0
"""docs/faults.md promises what tests show."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"\[\w+\.py\]\(\.\./(\S+)\) `(\w+)` \|$")


def test_every_line_names_a_test_that_is_there() -> None:
    rows = [
        line
        for line in (ROOT / "docs/faults.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith(("| what ", "|---"))
    ]
    assert len(rows) > 20
    for row in rows:
        found = LINE.search(row)
        assert found, row
        assert f"def {found[2]}(" in (ROOT / found[1]).read_text(), row
