# SPDX-License-Identifier: Apache-2.0
"""Entry point of `aliquot`: parses the arguments, runs one command, words the error."""

import argparse
import sys
from collections.abc import Sequence

from aliquot_api.errors import InvalidInput
from aliquot_cli import share


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="aliquot", description="Exact GPU shares in Kubernetes.")
    share.add_to(top.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `aliquot ARGV`; the exit status."""
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (InvalidInput, OSError, ValueError) as error:
        sys.stderr.write(f"aliquot: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
