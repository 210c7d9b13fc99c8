# SPDX-License-Identifier: Apache-2.0
"""A release with another layout of quota and ledger, made for the test of an upgrade.

The limit moves to a new word, in bytes that were reserved: so layouts may change, says
shim/include/aliquot_region.h. The library of that release reads the new word, and the old one where it is 0
(under the agent before, to which the word is reserved). Its agent writes both: the old library goes on.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aliquot_agent import region

ROOT: Final = Path(__file__).resolve().parents[2]
WORD: Final = "moved_limit_bytes"
OFFSET: Final = region.QuotaLayout.log_path.offset - 8
"""Where the new word is: at the end of what is reserved before the path of the log."""

_RESERVED: Final = region.QuotaLayout.reserved1.size
_READ: Final = "__atomic_load_n(&share->quota->memory_limit_bytes, __ATOMIC_RELAXED)"
_CHANGES: Final[Mapping[str, Mapping[str, str]]] = {
    "shim/include/aliquot_region.h": {
        f"uint8_t reserved1[{_RESERVED}];": f"uint8_t reserved1[{_RESERVED - 8}];\n  uint64_t {WORD};",
    },
    "shim/src/share.h": {_READ: f"({_READ.replace('memory_limit_bytes', WORD)} ?: {_READ})"},
    "node-agent/aliquot_agent/region.py": {
        f'("reserved1", ctypes.c_uint8 * {_RESERVED}),': (
            f'("reserved1", ctypes.c_uint8 * {_RESERVED - 8}), ("{WORD}", _u64),'
        ),
        "page.memory_limit_bytes = quota.memory_limit_bytes": (
            f"page.memory_limit_bytes = page.{WORD} = quota.memory_limit_bytes"
        ),
    },
}


def text(path: str) -> str:
    """A source file of that release."""
    changed = (ROOT / path).read_text(encoding="utf-8")
    for before, after in _CHANGES.get(path, {}).items():
        if changed.count(before) != 1:
            raise LookupError(f"{path}: want {before!r} once; follow the change in {__name__}")
        changed = changed.replace(before, after)
    return changed


def library(folder: Path) -> Path:
    """libaliquot.so of that release, for glibc 2.17 as ours; built below `folder` unless it is there."""
    sources = sorted(each for part in ("src", "include") for each in (ROOT / "shim" / part).iterdir())
    paths = ["shim/Makefile", *(str(source.relative_to(ROOT)) for source in sources)]
    texts = {path: text(path) for path in paths}
    key = hashlib.sha256(repr(texts).encode()).hexdigest()[:12]
    place = folder.resolve() / f"next-library-{key}"
    built = place / "build/release" / platform.machine() / "libaliquot.so"
    if not built.exists():
        for old in folder.glob("next-library-*"):
            shutil.rmtree(old)
        for path, content in texts.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(content, encoding="utf-8")
        make = ("make", "-s", "-C", str(place / "shim"), f"BUILD={place}/build", f"PYTHON={sys.executable}")
        subprocess.run([*make, str(built)], check=True, stdin=subprocess.DEVNULL, timeout=600)
    return built
