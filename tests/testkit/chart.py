# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered or as a release on a cluster, by the real Helm."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.api import Object
from tests.cluster.binaries import helm
from tests.cluster.system import run

CHART: Final = Path(__file__).parents[2] / "deploy/charts/aliquot"
RELEASE: Final = "aliquot"
NAMESPACE: Final = "aliquot-system"

Values = Mapping[str, Any]
"""Values of the chart, as nested mappings."""


def render(
    values: Values | None = None,
    *,
    served: Sequence[str] = (),
    hooks: bool = False,
    namespace: str = NAMESPACE,
    kubernetes: str = "",
) -> list[Object]:
    """What an installation would apply; `served` are API versions that the cluster has besides its own."""
    options = [word for version in served for word in ("--api-versions", version)]
    options += ["--kube-version", kubernetes] if kubernetes else []
    if not hooks:
        options.append("--no-hooks")
    text = _helm("template", RELEASE, str(CHART), "--namespace", namespace, *options, values=values or {})
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def lint(values: Values | None = None) -> str:
    """What `helm lint --strict` says; raises where it finds fault."""
    return _helm("lint", "--strict", str(CHART), values=values or {})


def merged(under: Values, over: Values) -> dict[str, Any]:
    """`over` laid upon `under`, as Helm lays one values file upon another."""
    result = {**under}
    for key, value in over.items():
        below = under.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


class Release:
    """The chart on a cluster; `environment` says on which (KUBECONFIG)."""

    def __init__(self, *, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def install(self, values: Values, *options: str, timeout_s: float = 180) -> str:
        """`helm install`."""
        return self._run(
            "install", RELEASE, str(CHART), "--create-namespace", *options, values=values, timeout_s=timeout_s
        )

    def upgrade(self, values: Values, *options: str, timeout_s: float = 180) -> str:
        """`helm upgrade`."""
        return self._run("upgrade", RELEASE, str(CHART), *options, values=values, timeout_s=timeout_s)

    def rollback(self, *options: str, timeout_s: float = 180) -> str:
        """`helm rollback` to the revision before."""
        return self._run("rollback", RELEASE, *options, timeout_s=timeout_s)

    def revision(self) -> int:
        """The newest one's number."""
        where = ("--namespace", NAMESPACE, "--output", "json")
        history = json.loads(_helm("history", RELEASE, *where, environment=self._environment))
        return max(int(each["revision"]) for each in history)

    def uninstall(self, *options: str, timeout_s: float = 180) -> str:
        """`helm uninstall`; waits until what it deletes is gone."""
        return self._run("uninstall", RELEASE, *options, timeout_s=timeout_s)

    def _run(self, verb: str, *words: str, values: Values | None = None, timeout_s: float) -> str:
        where = ("--namespace", NAMESPACE, "--timeout", f"{timeout_s:.0f}s")
        return _helm(
            verb, *words, *where, values=values, timeout_s=timeout_s + 30, environment=self._environment
        )


def _helm(
    *words: str,
    values: Values | None = None,
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        given = () if values is None else ("--values", file.name)
        return run(helm(), *words, *given, timeout_s=timeout_s, env=environment or dict(os.environ))
