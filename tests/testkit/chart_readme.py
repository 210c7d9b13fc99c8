# SPDX-License-Identifier: Apache-2.0
"""Writes the chart's README.md from the comments in its values.yaml: python -m tests.testkit.chart_readme"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tests.testkit.chart import CHART

_MARK: Final = "# -- "
_HEAD: Final = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# Chart `aliquot`

Exact GPU shares in Kubernetes. How to [install](../../../docs/install.md) it, and how to
[upgrade and remove](../../../docs/operating.md) it. One release for a cluster: the names of driver and
classes are global. This table is made from the comments in [values.yaml](values.yaml) (`make docs`);
a value that is not in it is refused.

| value | default | |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One documented value."""

    path: str
    default: str
    text: str


def table() -> list[Row]:
    """The values that have a comment, in the order of the file."""
    source = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(source)
    comments = dict(_comments(source.splitlines()))
    return [Row(path, _shown(_at(defaults, path)), text) for path, text in comments.items()]


def page() -> str:
    """The whole README."""
    rows = [f"| `{row.path}` | `{row.default}` | {row.text} |\n" for row in table()]
    return _HEAD + "".join(rows)


def _comments(lines: list[str]) -> Iterator[tuple[str, str]]:
    path: list[tuple[int, str]] = []
    comment = ""
    for line in lines:
        bare = line.strip()
        if bare.startswith(_MARK):
            comment = bare.removeprefix(_MARK)
        elif ":" in bare and not bare.startswith(("#", "-")):
            indent = len(line) - len(line.lstrip())
            path = [step for step in path if step[0] < indent]
            path.append((indent, bare.partition(":")[0]))
            if comment:
                yield ".".join(name for _, name in path), comment
                comment = ""


def _at(node: Any, path: str) -> Any:
    for key in path.split("."):
        node = node[key]
    return node


def _shown(value: Any) -> str:
    return json.dumps(value)


def main() -> int:
    (CHART / "README.md").write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
