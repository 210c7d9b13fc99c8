# SPDX-License-Identifier: Apache-2.0
"""Figures of a benchmark: a table on the screen, and build/bench/NAME.json.

A missed target is shown; it is no failure of the command.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "bench"


class Figure(TypedDict):
    """One line of build/bench/NAME.json."""

    what: str
    value: float
    unit: str
    baseline: float | None
    """What was measured in the same run without us."""
    target: float | None
    """None: nothing is promised; it tells what the other figures mean."""
    holds: bool


def at_most(what: str, value: float, unit: str, *, target: float, baseline: float | None = None) -> Figure:
    """A figure that may be `target` at most."""
    return _figure(what, value, unit, target=target, baseline=baseline, holds=value <= target)


def at_least(what: str, value: float, unit: str, *, target: float, baseline: float | None = None) -> Figure:
    """A figure that has to be `target` at least."""
    return _figure(what, value, unit, target=target, baseline=baseline, holds=value >= target)


def context(what: str, value: float, unit: str, *, baseline: float | None = None) -> Figure:
    """A figure that promises nothing."""
    return _figure(what, value, unit, target=None, baseline=baseline, holds=True)


def publish(name: str, figures: Sequence[Figure]) -> None:
    """Prints the table and writes build/bench/`name`.json."""
    width = max(len(each["what"]) for each in figures)
    sys.stdout.write(f"{name:{width}} {'value':>12} {'':8} {'baseline':>12} {'target':>12}\n")
    for each in figures:
        baseline = "" if each["baseline"] is None else f"{each['baseline']:g}"
        mark = "" if each["holds"] else "  MISSED"
        value = f"{each['what']:{width}} {each['value']:>12g} {each['unit']:8}"
        target = "" if each["target"] is None else f"{each['target']:g}"
        sys.stdout.write(f"{value} {baseline:>12} {target:>12}{mark}".rstrip() + "\n")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _figure(
    what: str, value: float, unit: str, *, target: float | None, baseline: float | None, holds: bool
) -> Figure:
    return {
        "what": what,
        "value": round(value, 3),
        "unit": unit,
        "baseline": None if baseline is None else round(baseline, 3),
        "target": None if target is None else round(target, 3),
        "holds": holds,
    }
