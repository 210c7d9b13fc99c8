# SPDX-License-Identifier: Apache-2.0
"""Whether cuGetProcAddress answers with exported addresses for the names we hook; prints one JSON object."""

import json
import re
import sys
from ctypes import byref, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Final

from tests.gpu.driver import Driver

HOOKS: Final = Path(__file__).resolve().parents[3] / "shim" / "src" / "hooks.def"


def main() -> None:
    """Prints the names whose answer has no exported symbol, and how many were asked for."""
    driver = Driver()
    driver.context()
    hooked = re.findall(r"AQ_(?:HOOK|GATE)\(CUDA, (cu\w+)\)", HOOKS.read_text("utf-8"))
    exported = {driver.address(name): name for name in hooked if driver.address(name)}
    version = driver.number("cuDriverGetVersion", c_int)
    elsewhere = {}
    for base in sorted({re.sub(r"(_v\d+)?(_pt[sd]z?)?$", "", name) for name in hooked}):
        for flags in (0, 1, 2):
            found, status = c_void_p(), c_int()
            code = driver.code(
                "cuGetProcAddress_v2", base.encode(), byref(found), version, c_uint64(flags), byref(status)
            )
            if code == 0 and found.value and found.value not in exported:
                elsewhere[f"{base} flags {flags}"] = hex(found.value)
    json.dump({"hooked": len(hooked), "exported": len(exported), "elsewhere": elsewhere}, sys.stdout)


if __name__ == "__main__":
    main()
