# SPDX-License-Identifier: Apache-2.0
"""One cluster for all tests of the webhook; a namespace for each."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import ApiError, Cluster
from tests.system.installation import gates, kubernetes_version
from tests.webhook_cluster.installation import Installation, gpu_slice

L4_MIB = 23034
BINDINGS = "validatingadmissionpolicybindings"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real cluster; TESTBED_ATTACH names one that is up, for the quick loop of development."""
    attached = os.environ.get("TESTBED_ATTACH")
    if attached:
        yield Cluster.attach(attached)
        return
    with Cluster.up(name="webhook", nodes=2, kubernetes=kubernetes_version(), gates=gates()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def installation(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Aliquot's control plane and one node with two L4 (as slices: nothing runs on them)."""
    folder: Path = tmp_path_factory.mktemp("webhook")
    installation = Installation(cluster, folder)
    cluster.apply(gpu_slice("node-1", sizes_mib=[L4_MIB, L4_MIB], product="NVIDIA L4"))
    try:
        installation.install()
        yield installation
    finally:
        installation.remove()
        print(installation.log("webhook"), installation.log("controller"), sep="\n")


@contextmanager
def opted_in(cluster: Cluster) -> Iterator[str]:
    """An opted-in namespace."""
    name = f"team-{os.getpid()}-{next(_NUMBERS)}"
    _create_namespace(cluster, name, {"aliquot.dev/inject": "enabled"})
    yield name
    cluster.delete("namespaces", name, timeout_s=None)


@contextmanager
def without_own_policies(cluster: Cluster) -> Iterator[None]:
    """The server without the policies that leave our templates, and claims of their names, to the webhook."""
    bindings = [cluster.get(BINDINGS, name) for name in ("aliquot-own-claims", "aliquot-own-templates")]
    for each in bindings:
        cluster.delete(BINDINGS, each["metadata"]["name"])
    cluster.wait_for(lambda: not any(_refusals(cluster)) or None, what="the policies to be gone")
    try:
        yield
    finally:
        for each in bindings:
            each["metadata"] = {key: each["metadata"][key] for key in ("name", "labels")}
            cluster.apply(each)
        cluster.wait_for(lambda: all(_refusals(cluster)) or None, what="the policies to be in force")


def _refusals(cluster: Cluster) -> Iterator[bool]:
    """Whether a template under our name is refused, and a pod that names one where it is not converted."""
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    request = {"name": "any", "exactly": {"deviceClassName": "any.example"}}
    pod = {"apiVersion": "v1", "kind": "Pod"}
    claim = {"name": "any", "resourceClaimTemplateName": "aliquot-any"}
    spec = {"containers": [{"name": "main", "image": "any"}], "resourceClaims": [claim]}
    metadata = {"name": "aliquot-any", "namespace": "default"}
    for each in (
        {**template, "metadata": metadata, "spec": {"spec": {"devices": {"requests": [request]}}}},
        {**pod, "metadata": metadata, "spec": spec},
    ):
        try:
            cluster.api.create(each, dry_run=True)
        except ApiError as error:
            if error.status != 403:
                raise
            yield True
        else:
            yield False


@pytest.fixture
def namespace(cluster: Cluster, installation: Installation) -> Iterator[str]:
    """An opted-in namespace of the test's own."""
    with opted_in(cluster) as name:
        yield name


@pytest.fixture
def plain_namespace(cluster: Cluster, installation: Installation) -> Iterator[str]:
    """A namespace without the label."""
    name = f"plain-{os.getpid()}-{next(_NUMBERS)}"
    _create_namespace(cluster, name, {})
    yield name
    cluster.delete("namespaces", name, timeout_s=None)


@pytest.fixture
def templates(cluster: Cluster, namespace: str) -> Callable[[], list[str]]:
    """Names of the templates in the test's namespace."""
    return lambda: [each["metadata"]["name"] for each in cluster.list("resourceclaimtemplates", namespace)]


def _create_namespace(cluster: Cluster, name: str, labels: dict[str, str]) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    cluster.wait_for(
        lambda: (
            [each for each in cluster.list("serviceaccounts", name) if each["metadata"]["name"] == "default"]
            or None
        ),
        what="the default service account",
    )
