# SPDX-License-Identifier: Apache-2.0
"""Since which CUDA version the driver has each function that hooks.def stands before.

`python -m shim.abis` writes src/abis.def anew, from the newest headers and hooks.def: the shim needs it where
cuGetProcAddress answers with addresses that the driver does not export.
"""

import re
import sys
from pathlib import Path
from typing import Final

from shim import headers
from shim.sim import generate

TABLE: Final = Path(__file__).with_name("src") / "abis.def"
_HOOKS: Final = TABLE.with_name("hooks.def")
_HEAD: Final = """\
/* SPDX-License-Identifier: Apache-2.0
 *
 * Written by `python -m shim.abis`: the name and the CUDA version to ask cuGetProcAddress for, by symbol;
 * names in order, and of each the versions.
 */
"""


def table() -> str:
    """What src/abis.def must hold."""
    newest = headers.folder(list(headers.pins())[-1])
    hooked = set(re.findall(r"^AQ_(?:HOOK|GATE|LOAD)\(CUDA, (\w+)\)", _HOOKS.read_text(), re.MULTILINE))
    entries = generate.lookup_table(generate.cuda_names("cc", newest), generate.typedef_versions(newest))
    rows = sorted((entry.base, entry.version, entry.symbol) for entry in entries if entry.symbol in hooked)
    return _HEAD + "".join(f"AQ_ABI({symbol}, {base}, {version})\n" for base, version, symbol in rows)


def main() -> int:
    TABLE.write_text(table(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
