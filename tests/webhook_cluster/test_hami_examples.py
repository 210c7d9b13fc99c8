# SPDX-License-Identifier: Apache-2.0
"""HAMi's example manifests, in the shapes of docs/examples/hami: accepted unchanged, and scheduled."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.webhook_cluster.conftest import opted_in
from tests.webhook_cluster.installation import Installation, gpu_slice

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "hami"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
CONFIGURATION = ("mutatingwebhookconfigurations", "aliquot-webhook")
COUNT = "nvidia.com/gpu"
"""HAMi's name of the count."""


@pytest.fixture(scope="module")
def namespace_with_all(cluster: Cluster, installation: Installation) -> Iterator[str]:
    """The count renamed as an administrator does it, a node with GPUs for everybody, and all examples."""
    resource_slice = gpu_slice("node-2", sizes_mib=[81920] * 32 + [32768] * 32, product="A100 or V100")
    for index, device in enumerate(resource_slice["spec"]["devices"]):
        product = "NVIDIA A100-SXM4-80GB" if index < 32 else "Tesla V100-SXM2-32GB"
        device["attributes"] |= {"productName": {"string": product}, "minor": {"int": index}}
    resource_slice["spec"]["devices"][5]["attributes"]["uuid"] = {"string": "GPU-123456"}
    cluster.apply(resource_slice)
    original = cluster.get(*CONFIGURATION)["webhooks"][0]["matchConditions"]
    installation.stop("webhook")
    _match(cluster, yaml.safe_load(yaml.safe_dump(original).replace("nvidia.com/vgpu", COUNT)))
    installation.start("webhook", resource_count=COUNT)
    installation.wait_ready()
    with opted_in(cluster) as name:
        for those in (True, False):  # what wants certain cards comes before what takes any
            for path in EXAMPLES:
                for manifest in yaml.safe_load_all(path.read_text()) if _wants_certain(path) is those else ():
                    manifest["metadata"]["namespace"] = name
                    cluster.api.create(manifest)
            cluster.wait_for(
                lambda: all("nodeName" in each["spec"] for each in cluster.list("pods", name)) or None,
                what="the pods to be scheduled",
                timeout_s=120,
            )
        yield name
    installation.stop("webhook")
    _match(cluster, original)
    cluster.delete("resourceslices", resource_slice["metadata"]["name"])
    installation.start("webhook")
    installation.wait_ready()


def _wants_certain(path: Path) -> bool:
    return path.stem in ("uuid-to-use", "index-to-use")


def _match(cluster: Cluster, conditions: Any) -> None:
    webhooks = cluster.get(*CONFIGURATION)["webhooks"]
    webhooks[0]["matchConditions"] = conditions
    cluster.api.patch(*CONFIGURATION, {"webhooks": webhooks})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_unchanged_and_scheduled(
    cluster: Cluster, namespace_with_all: str, path: Path
) -> None:
    wanted = [
        each["metadata"]["name"]
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] in ("Pod", "Job", "Deployment")
    ]

    def claims() -> list[dict[str, Any]] | None:
        """Those of the example's pods, once all pods are scheduled."""
        pods = [
            each
            for each in cluster.list("pods", namespace_with_all)
            if any(name in (each["metadata"]["name"], _maker(each)) for name in wanted)
        ]
        if len(pods) != len(wanted) or not all(each["spec"].get("nodeName") for each in pods):
            return None
        names = {each["metadata"]["name"] for each in pods}
        return [each for each in cluster.list("resourceclaims", namespace_with_all) if _maker(each) in names]

    found = cluster.wait_for(claims, what="every pod to be scheduled", timeout_s=120)
    assert len(found) >= len(wanted)
    _check([dict(each) for claim in found for each in _results(claim)], path.stem)


def _maker(made: dict[str, Any]) -> str:
    """The pod of a claim; the Job of a pod, or its Deployment."""
    owners = made["metadata"].get("ownerReferences", [])
    name: str = owners[0]["name"] if owners else ""
    return name.rpartition("-")[0] if owners and owners[0]["kind"] == "ReplicaSet" else name


def _results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
    return results


def _check(results: list[dict[str, Any]], example: str) -> None:
    """The point of an example, where it has one beyond being scheduled."""
    cards = [(each["pool"], each["device"]) for each in results]
    consumed = [each["consumedCapacity"] for each in results]
    special = ("node-2", "gpu-5")
    if example in ("default-use", "memory-fraction", "use-as-normal", "exclusive-card"):
        assert len(cards) > 1
        assert len(set(cards)) == len(cards)
    elif example == "uuid-to-use":
        assert cards == [special]
    elif example == "uuid-not-use":
        assert special not in cards
    elif example == "card-type-to-use":
        assert {pool for pool, _ in cards} == {"node-2"}
    elif example in ("index-not-use", "index-to-use"):
        assert (cards[0][1] in ("gpu-0", "gpu-1")) == (example == "index-to-use")
    elif example == "allocate-device-core":
        assert {each["cores"] for each in consumed} == {"50"}
    elif example in ("init-container", "sidecar"):
        assert len(results) == 2


def test_every_example_names_the_one_that_it_follows() -> None:
    assert len(EXAMPLES) >= 20
    sources = [path.read_text().splitlines()[1] for path in EXAMPLES]
    assert all(source.startswith("# Follows HAMi's ") for source in sources)
    assert len(set(sources)) == len(sources)
