# SPDX-License-Identifier: Apache-2.0
"""Checks that each file of the tree carries its licence line near the top."""

import subprocess
import sys
from pathlib import Path
from typing import Final

LINE: Final = "SPDX-License-Identifier: Apache-2.0"
WITHOUT_COMMENTS: Final = {".json", ".lock", ".sum", ".md", ".typed"}
"""Formats that have no comments, are generated, or are prose (covered by LICENSE)."""
NAMES: Final = {"LICENSE", "go.mod"}
FUZZ_INPUTS: Final = "corpus"
"""Folders of inputs that fuzzing found: bytes, not text."""


def missing(paths: list[Path]) -> list[Path]:
    """Those of `paths` whose first five lines lack the licence line."""

    def lacks(path: Path) -> bool:
        if path.suffix in WITHOUT_COMMENTS or path.name in NAMES or not path.is_file():
            return False
        if FUZZ_INPUTS in path.parts:
            return False
        return LINE not in "\n".join(path.read_text(encoding="utf-8").splitlines()[:5])

    return [path for path in paths if lacks(path)]


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    wrong = missing([Path(name) for name in listed.split("\0") if name])
    for path in wrong:
        sys.stderr.write(f"{path}: no line {LINE!r} at the top\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
