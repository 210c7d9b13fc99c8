# SPDX-License-Identifier: Apache-2.0
"""What commands print: tables for people, JSON or YAML for machines. Colours only on a terminal."""

import argparse
import enum
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

import yaml

from aliquot_api.quantity import MIB

_GIB: Final = 1024 * MIB
_BAR: Final = 20
_RESET: Final = "\033[0m"
_CLEAR_LINE: Final = "\r\033[K"


class Colour(enum.StrEnum):
    """Terminal sequences (ECMA-48)."""

    RED = "\033[31m"
    GREEN = "\033[32m"
    YELLOW = "\033[33m"
    BOLD = "\033[1m"
    NONE = ""


class Printer:
    """Where a command writes, and in which form."""

    def __init__(self, *, form: str, stream: TextIO, colours: bool) -> None:
        self.form = form
        self._stream = stream
        self._colours = colours

    @property
    def for_people(self) -> bool:
        """Whether a table is wanted."""
        return self.form == "table"

    def text(self, text: str) -> None:
        """Plain lines."""
        self._stream.write(text if text.endswith("\n") or not text else f"{text}\n")
        self._stream.flush()

    def document(self, document: object) -> None:
        """Data, for machines."""
        if self.form == "yaml":
            yaml.safe_dump(document, self._stream, sort_keys=False, allow_unicode=True)
        else:
            self._stream.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        self._stream.flush()

    def paint(self, text: str, colour: Colour) -> str:
        """`text` in a colour, where colours are wanted."""
        return f"{colour}{text}{_RESET}" if self._colours and colour and text else text


class Progress:
    """A line that says what is being waited for, while it is: on a terminal, and nowhere else."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.say("")

    def say(self, words: str) -> None:
        """These words in place of those before."""
        if self._stream.isatty():
            self._stream.write(f"{_CLEAR_LINE}{words}")
            self._stream.flush()


def add_output_option(parser: argparse.ArgumentParser, *more: str) -> None:
    """`-o table|json|yaml`, and the forms of `more`."""
    parser.add_argument(
        "-o", "--output", choices=["table", "json", "yaml", *more], default="table", help="form of the answer"
    )


def printer(form: str, *, stream: TextIO | None = None) -> Printer:
    """For this process: colours on a terminal, unless NO_COLOR is set (no-color.org)."""
    stream = stream or sys.stdout
    return Printer(form=form, stream=stream, colours=colours_wanted(stream, os.environ))


def colours_wanted(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether `stream` shows colours, and its user wants them."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "".join(f"{line.rstrip()}\n" for line in shown)


def bar(part: int, whole: int, *, width: int = _BAR) -> str:
    """`[########------------]`; more than the whole is full."""
    filled = 0 if whole <= 0 else min(width, -(-part * width // whole) if part > 0 else 0)
    return f"[{'#' * filled}{'-' * (width - filled)}]"


def size(value_bytes: int | None) -> str:
    """Bytes for people: `22578Mi`, `1.5Gi`; `-` where nothing is known."""
    if value_bytes is None:
        return "-"
    whole, rest = divmod(value_bytes, _GIB)
    if value_bytes >= 1024 * _GIB:
        return f"{value_bytes / (1024 * _GIB):.1f}Ti"
    if whole and not rest:
        return f"{whole}Gi"
    return f"{round(value_bytes / MIB)}Mi"


def counted(number: int, what: str) -> str:
    """A number of things: 1 GPU, 2 GPUs."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def percent(part: float, whole: float) -> str:
    """`37%`; `-` of nothing."""
    return f"{round(100 * part / whole)}%" if whole > 0 else "-"
