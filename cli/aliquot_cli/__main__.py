# SPDX-License-Identifier: Apache-2.0
"""Entry point of `aliquot` and `kubectl aliquot`: parses the arguments, runs one command, words the error.

Exit status: 0 done, and nothing is wrong; 1 an error; 2 the command line is not understood; 3 the command
worked, and what it looked at is not well. `aliquot run` ends as the program that it runs.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from aliquot_api.errors import InvalidInput

COMMANDS: Final[Mapping[str, str]] = {
    "top": "top",
    "explain": "explain",
    "doctor": "doctor",
    "resize": "resize",
    "budget": "budget",
    "report": "report",
    "cordon": "cordon",
    "uncordon": "cordon",
    "run": "local",
    "docker": "containers",
    "ps": "local",
    "share": "share",
    "completion": "completion",
}
"""Each command's module. Only the one that is called is loaded: the Kubernetes client alone takes half a
second, and `aliquot run` does not need it."""


def parser(program: str = "aliquot", *, only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or that of one command."""
    parser = argparse.ArgumentParser(prog=program, description="Exact GPU shares in Kubernetes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in dict.fromkeys(COMMANDS.values() if only is None else [COMMANDS[only]]):
        importlib.import_module(f"aliquot_cli.{module}").add_to(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `aliquot ARGV`; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    is_plugin = os.path.basename(sys.argv[0]).startswith("kubectl-")
    only = words[0] if words and words[0] in COMMANDS else None
    arguments = parser("kubectl aliquot" if is_plugin else "aliquot", only=only).parse_args(words)
    try:
        return int(arguments.run(arguments) or 0)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InvalidInput, OSError, ValueError) as error:
        sys.stderr.write(f"aliquot: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
