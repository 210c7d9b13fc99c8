# SPDX-License-Identifier: Apache-2.0
"""`aliquot completion`: a script by which bash and zsh complete commands and options."""

import argparse
from typing import Final

from aliquot_cli import output

_BASH: Final = """# aliquot completion bash: source <(aliquot completion bash)
_aliquot() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
  [ "$COMP_CWORD" -eq 1 ] && {{ COMPREPLY=($(compgen -W "{commands}" -- "$word")); return; }}
  case "$command" in
{cases}
  esac
}}
complete -o default -F _aliquot aliquot
"""
_ZSH: Final = "#compdef aliquot\nautoload -U +X bashcompinit && bashcompinit\n"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `completion`."""
    parser = commands.add_parser(
        "completion", help="completion for a shell: source <(aliquot completion bash)"
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`aliquot completion SHELL`."""
    from aliquot_cli.__main__ import parser  # noqa: PLC0415  # it imports us

    output.printer("table").text(script(arguments.shell, parser()))
    return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script: zsh takes bash's."""
    words = {name: " ".join(_words(command)) for name, command in _commands(parser).items()}
    cases = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{each}" -- "$word"));;' for name, each in words.items()
    )
    bash = _BASH.format(commands=" ".join(words), cases=cases)
    return _ZSH + bash if shell == "zsh" else bash


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below a parser, by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Verbs, and the options of a command and of its verbs."""
    below = _commands(parser)
    options = {
        option for action in parser._actions for option in action.option_strings if option.startswith("--")
    }
    for verb in below.values():
        options.update(_words(verb))
    return [*below, *sorted(options)]
