# SPDX-License-Identifier: Apache-2.0
"""HAMi's example manifests, in the shapes of docs/examples/hami: accepted unchanged, and scheduled."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.webhook_cluster.installation import Installation, gpu_slice

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "hami"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
CONFIGURATION = ("mutatingwebhookconfigurations", "aliquot-webhook")
COUNT = "nvidia.com/gpu"
"""HAMi's name of the count."""


@pytest.fixture(scope="module")
def with_hamis_names(cluster: Cluster, installation: Installation) -> Iterator[None]:
    """The count renamed as an administrator does it, and a node of four GPUs more."""
    resource_slice = gpu_slice("node-2", sizes_mib=[81920, 81920, 32768, 32768], product="NVIDIA A100")
    for index, device in enumerate(resource_slice["spec"]["devices"]):
        product = "NVIDIA A100-SXM4-80GB" if index < 2 else "Tesla V100-SXM2-32GB"
        device["attributes"] |= {"productName": {"string": product}, "minor": {"int": index}}
    resource_slice["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "GPU-123456"}
    cluster.apply(resource_slice)
    original = cluster.get(*CONFIGURATION)["webhooks"][0]["matchConditions"]
    installation.stop("webhook")
    _match(cluster, yaml.safe_load(yaml.safe_dump(original).replace("nvidia.com/vgpu", COUNT)))
    installation.start("webhook", resource_count=COUNT)
    installation.wait_ready()
    yield
    installation.stop("webhook")
    _match(cluster, original)
    cluster.delete("resourceslices", resource_slice["metadata"]["name"])
    installation.start("webhook")
    installation.wait_ready()


def _match(cluster: Cluster, conditions: Any) -> None:
    webhooks = cluster.get(*CONFIGURATION)["webhooks"]
    webhooks[0]["matchConditions"] = conditions
    cluster.api.patch(*CONFIGURATION, {"webhooks": webhooks})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_unchanged_and_scheduled(
    cluster: Cluster, namespace: str, with_hamis_names: None, path: Path
) -> None:
    manifests = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] != "Service"]
    for manifest in manifests:
        manifest["metadata"]["namespace"] = namespace
        cluster.api.create(manifest)

    def scheduled() -> list[str]:
        return [
            each["spec"]["nodeName"]
            for each in cluster.list("pods", namespace)
            if each["spec"].get("nodeName") and each["spec"].get("resourceClaims")
        ]

    cluster.wait_for(lambda: len(scheduled()) == len(manifests) or None, what="every pod to be scheduled")
    claims = cluster.list("resourceclaims", namespace)
    assert all("allocation" in each["status"] for each in claims)
    _check(claims, path.stem)


def _check(claims: list[dict[str, Any]], example: str) -> None:
    """The whole of an example's point, where it has one beyond being scheduled."""
    results = [each for claim in claims for each in claim["status"]["allocation"]["devices"]["results"]]
    cards = [(each["pool"], each["device"]) for each in results]
    if example in ("default-use", "memory-fraction", "use-as-normal", "exclusive-card"):
        assert len(set(cards)) == len(cards)  # different ones
    if example == "uuid-to-use":
        assert cards == [("node-2", "gpu-0")]
    if example == "uuid-not-use":
        assert ("node-2", "gpu-0") not in cards
    if example == "card-type-to-use":
        assert {pool for pool, _ in cards} == {"node-2"}
    if example == "index-not-use":
        assert ("node-2", "gpu-0") not in cards
    if example == "sharing-card":
        assert len(set(cards)) == 1
        assert sum(int(each["consumedCapacity"]["cores"]) for each in results) == 100
    if example in ("init-container", "sidecar"):
        assert len(results) == 2


def test_every_example_names_the_one_that_it_follows() -> None:
    assert len(EXAMPLES) >= 20
    sources = [path.read_text().splitlines()[1] for path in EXAMPLES]
    assert all(source.startswith("# Follows HAMi's ") for source in sources)
    assert len(set(sources)) == len(sources)
