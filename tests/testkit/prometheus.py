# SPDX-License-Identifier: Apache-2.0
"""Prometheus and promtool, and a Prometheus that runs beside a test.

They come from Debian's package.
"""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.system import TestbedError, wait_until
from tests.testkit.debian import unpacked

_READY_S: Final = 60


def program(name: str) -> Path:
    """`prometheus` or `promtool`: the machine's, else the package's, fetched once."""
    if installed := shutil.which(name):
        return Path(installed)
    return unpacked("prometheus", "prometheus") / "usr/bin" / name


class Server:
    """A Prometheus that answers at an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[Any]:
        """The series of an instant query, as Prometheus has them now."""
        return list(self._get("query", query=expression)["result"])

    def range(self, expression: str, *, start_s: float, end_s: float, step_s: float) -> list[Any]:
        """The series of a query over a time."""
        times = {"start": str(start_s), "end": str(end_s), "step": str(step_s)}
        return list(self._get("query_range", query=expression, **times)["result"])

    def targets(self) -> dict[str, str]:
        """Health (`up`, `down`, `unknown`) of each target, by its address."""
        return {each["labels"]["instance"]: each["health"] for each in self._get("targets")["activeTargets"]}

    def rules(self) -> dict[str, str]:
        """Health (`ok`, `err`, `unknown`) of each alert."""
        groups = self._get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _get(self, page: str, **words: str) -> Any:
        url = f"http://{self._address}/api/v1/{page}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]


@contextmanager
def serving(folder: Path, *, scrape: Sequence[Mapping[str, Any]], rules: Path) -> Iterator[Server]:
    """A Prometheus on a free port of loopback with these jobs and rules, until the end of the block."""
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": list(scrape),
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    argv = [
        str(program("prometheus")),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out) as process:
        try:
            yield wait_until(
                lambda: _ready(process, log), what="Prometheus", timeout_s=_READY_S, retry_on=(OSError,)
            )
        finally:
            process.terminate()


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> Server | None:
    """The server, once it answers where its log says that it listens."""
    text = log.read_text()
    if process.poll() is not None:
        raise TestbedError(f"prometheus has ended:\n{text[-2000:]}")
    found = re.search(r'msg="Listening on" address=(\S+)', text)
    if found is None:
        return None
    with urllib.request.urlopen(f"http://{found[1]}/-/ready", timeout=5):
        return Server(found[1])
