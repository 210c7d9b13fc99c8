# SPDX-License-Identifier: Apache-2.0
"""One cluster with Aliquot for all tests here; a namespace of its own for each test."""

import itertools
import os
import re
from collections.abc import Generator, Iterator
from typing import Final

import pytest

from aliquot_api import names
from tests.cluster.cluster import Cluster
from tests.cluster.collect import collect
from tests.system.images import BUILD
from tests.system.installation import NAMESPACE, TEST_VALUES, Installation, gates, kubernetes_version
from tests.system.workloads import Tenant

_NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="session")
def bed() -> Iterator[Cluster]:
    """A cluster of one node; with nothing of ours, unless ALIQUOT_TEST_ATTACH names one that is up."""
    attach = os.environ.get("ALIQUOT_TEST_ATTACH")
    if attach:
        yield Cluster.attach(attach)
        return
    name = os.environ.get("ALIQUOT_TEST_CLUSTER", "system")  # several runs on one machine
    with Cluster.up(name=name, kubernetes=kubernetes_version(), gates=gates()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def aliquot(bed: Cluster) -> Installation:
    """Aliquot on the cluster; the node has one simulated L4."""
    installation = Installation(bed, values=TEST_VALUES)
    if "ALIQUOT_TEST_ATTACH" not in os.environ or not bed.list("pods", NAMESPACE):
        installation.install()
    try:
        installation.wait_ready()
    except Exception:
        collect(bed, BUILD / "failures" / "installation")
        raise
    return installation


@pytest.fixture
def node(bed: Cluster) -> str:
    """The cluster's only node."""
    [name] = bed.nodes
    return name


@pytest.fixture
def tenant(aliquot: Installation, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace that opted in; afterwards nothing of it may be left anywhere."""
    word = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).removeprefix("test-")[:50].strip("-")
    name = f"{word}-{next(_NUMBERS)}"  # one that was removed goes later
    user = Tenant(aliquot.bed, namespace=name, labels={names.INJECT_LABEL: names.INJECT_ENABLED})
    try:
        yield user
        if getattr(request.node, "failed", False):
            collect(aliquot.bed, BUILD / "failures" / request.node.name)
    finally:
        user.remove()
    bed = aliquot.bed
    bed.wait_for(
        lambda: not [file for node in bed.nodes for file in aliquot.files(node)],
        what="no file of any claim on any node",
        timeout_s=30,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells fixtures whether their test has failed."""
    report = yield
    if report.when == "call":
        item.failed = report.failed  # type: ignore[attr-defined]  # pytest items have no field for it
    return report
