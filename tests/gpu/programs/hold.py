# SPDX-License-Identifier: Apache-2.0
"""hold.py MIB: holds that much memory until its input ends; says when it does."""

import sys

from tests.gpu.driver import Driver


def main() -> None:
    """Allocates, says so, waits."""
    driver = Driver()
    driver.context()
    driver.alloc(int(sys.argv[1]) << 20)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
