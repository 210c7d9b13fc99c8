# SPDX-License-Identifier: Apache-2.0
"""Pytest fixtures: a cluster for the session, a namespace for each test, and everything stored on failure.

Import the names in a conftest.py. The environment chooses the cluster:

TESTBED_ATTACH      use the cluster of that name, which is up, and leave it up (the quick loop of development)
TESTBED_KUBERNETES  the version, such as 1.36
TESTBED_NODES       how many nodes (default: 2)
TESTBED_GATES       feature gates, such as DRAConsumableCapacity=false,Another=true
TESTBED_ARTIFACTS   where failures are stored (default: build/testbed)
"""

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .binaries import DEFAULT_KUBERNETES
from .cluster import Cluster
from .system import TestbedError

__all__ = ["cluster", "namespace", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster that all tests of the session share: leave it as you found it."""
    attached = os.environ.get("TESTBED_ATTACH")
    if attached:
        yield Cluster.attach(attached)
        return
    with Cluster.up(
        name=f"pytest-{os.getpid()}",
        nodes=int(os.environ.get("TESTBED_NODES", "2")),
        kubernetes=os.environ.get("TESTBED_KUBERNETES", DEFAULT_KUBERNETES),
        gates=_gates(os.environ.get("TESTBED_GATES", "")),
        artifacts=_artifacts() / "up",
    ) as made:
        yield made


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, ready for pods."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    name = f"{words}-{os.urandom(3).hex()}"
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.wait_for(lambda: cluster.get("serviceaccounts", "default", name), what="its ServiceAccount")
    yield name
    for pod in cluster.list("pods", name):
        cluster.delete("pods", pod["metadata"]["name"], name, grace_s=0, timeout_s=None)
    cluster.delete("namespaces", name, timeout_s=None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Store the logs and objects of every cluster a failed test used, before its fixtures clean up."""
    report = yield
    if report.failed and call.when != "teardown":
        values = getattr(item, "funcargs", {}).values()
        for used in {id(value): value for value in values if isinstance(value, Cluster)}.values():
            folder = _artifacts() / re.sub(r"\W+", "-", item.nodeid) / used.name
            try:
                used.collect(folder)
            except (TestbedError, OSError) as error:
                report.sections.append(("testbed", f"nothing collected: {error}"))
            else:
                report.sections.append(("testbed", f"logs and objects: {folder}"))
    return report


def _artifacts() -> Path:
    return Path(os.environ.get("TESTBED_ARTIFACTS", "build/testbed")).absolute()


def _gates(text: str) -> dict[str, bool]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return {name: value.lower() == "true" for name, _, value in pairs}
