# SPDX-License-Identifier: Apache-2.0
"""The test bed's own tests use its own fixtures."""

from tests.cluster.fixtures import cluster, namespace, pytest_runtest_makereport

__all__ = ["cluster", "namespace", "pytest_runtest_makereport"]
