# SPDX-License-Identifier: Apache-2.0
"""Kinds of others on a cluster, so that its API server checks the chart's objects of them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.api import Object
from tests.cluster.cluster import Cluster

_KINDS: Final = Path(__file__).with_name("foreign.yaml")


@contextmanager
def served(bed: Cluster) -> Iterator[None]:
    """Meanwhile the API server knows these kinds, and nobody else does anything with their objects."""
    made = definitions()
    bed.apply(made)
    try:
        bed.wait_for(lambda: _are_served(bed, made), what="kinds of others")
        yield
    finally:
        for each in made:
            bed.delete("customresourcedefinitions", each["metadata"]["name"])


def definitions() -> list[Object]:
    """A CustomResourceDefinition for each kind."""
    return [_definition(**each) for each in yaml.safe_load(_KINDS.read_text(encoding="utf-8"))["kinds"]]


def _definition(*, group: str, kind: str, spec: Any) -> Object:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _are_served(bed: Cluster, made: Iterable[Object]) -> bool:
    for each in made:
        bed.list(each["metadata"]["name"])  # an error until it is served
    return True
