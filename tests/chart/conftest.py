# SPDX-License-Identifier: Apache-2.0
"""A cluster of its own: the chart is installed, changed and removed here."""

import os
from collections.abc import Iterator

import pytest

from aliquot_api import names
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import pytest_runtest_makereport
from tests.system.images import BUILD
from tests.system.installation import TEST_VALUES, Installation, gates, kubernetes_version
from tests.system.workloads import Tenant

__all__ = ["pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def bed() -> Iterator[Cluster]:
    """One node, with nothing of ours on it but images."""
    name = os.environ.get("ALIQUOT_TEST_CLUSTER", "chart")
    with Cluster.up(
        name=name, kubernetes=kubernetes_version(), gates=gates(), artifacts=BUILD / "failures/chart"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def aliquot(bed: Cluster) -> Installation:
    """What the tests install, and a look inside."""
    return Installation(bed, values=TEST_VALUES)


@pytest.fixture(scope="session")
def tenant(bed: Cluster) -> Tenant:
    """A namespace that has opted in, before and after Aliquot."""
    return Tenant(bed, namespace="team", labels={names.INJECT_LABEL: names.INJECT_ENABLED})
