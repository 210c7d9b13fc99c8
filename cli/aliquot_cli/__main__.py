# SPDX-License-Identifier: Apache-2.0
"""Entry point of `aliquot` and `kubectl aliquot`: parses the arguments, runs one command, words the error.

Exit status: 0 done, and nothing is wrong; 1 an error; 2 the command line is not understood; 3 the command
worked, and what it looked at is not well. `aliquot run` ends as the program that it runs.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from aliquot_api.errors import InvalidInput
from aliquot_cli import cordon, explain, share, top
from aliquot_webhook.kube import ApiError

_COMMANDS = (top, explain, cordon, share)


def parser(program: str = "aliquot") -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(prog=program, description="Exact GPU shares in Kubernetes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `aliquot ARGV`; the exit status."""
    is_plugin = os.path.basename(sys.argv[0]).startswith("kubectl-")
    arguments = parser("kubectl aliquot" if is_plugin else "aliquot").parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except ApiError as error:
        where = (
            "the API server cannot be reached" if error.status == 0 else f"the API server says {error.status}"
        )
        sys.stderr.write(f"aliquot: {where}: {error}\n")
    except (InvalidInput, OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        sys.stderr.write(f"aliquot: {error}\n")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 1


if __name__ == "__main__":
    sys.exit(main())
