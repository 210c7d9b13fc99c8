# SPDX-License-Identifier: Apache-2.0
"""`aliquot explain` says what the real scheduler does, and why, cause by cause."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from aliquot_api import names
from aliquot_cli.__main__ import main
from aliquot_cli.taintrules import rules_path, served_version
from aliquot_webhook.kube import Kube
from tests.cluster import Cluster
from tests.cluster.api import Object
from tests.webhook_cluster.installation import Installation, container, gpu_slice, pod
from tests.webhook_cluster.test_budgets import set_budget, wait_used
from tests.webhook_cluster.test_claims import ask, claim, pod_with, template

NODE: Final = "node-2"
PRODUCT: Final = "Explained X9"
SIZES_MIB: Final = [10000, 6000]
ON_OURS: Final = {"nvidia.com/use-gputype": "x9"}

Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def gpus(cluster: Cluster, installation: Installation, namespace: str) -> Iterator[Object]:
    """A node with two GPUs of a kind of their own."""
    made = gpu_slice(NODE, sizes_mib=SIZES_MIB, product=PRODUCT, shares=2)
    cluster.wait_for(lambda: not _holders(cluster), what="the GPUs to be empty")
    cluster.apply(made)
    yield made
    for each in cluster.list("pods", namespace):
        cluster.delete("pods", each["metadata"]["name"], namespace, grace_s=0, timeout_s=None)
    cluster.delete("resourceslices", made["metadata"]["name"])


def _holders(cluster: Cluster) -> list[str]:
    """Claims that have GPUs of NODE: an earlier test's namespace may still be on its way out."""
    return [
        each["metadata"]["name"]
        for each in cluster.list("resourceclaims")
        for result in each.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        if result["pool"] == NODE
    ]


@pytest.fixture
def explain(cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> Explain:
    """explain("pod", NAME): the command's answer about one pod, checked against its exit status."""

    def explained(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        options = ["--kubeconfig", str(cluster.kubeconfig), "-n", namespace, "-o", "json"]
        status = main(["explain", *words, *options])
        said = capsys.readouterr()
        assert status in (0, 3), said.err
        [answer] = json.loads(said.out)
        assert answer["well"] is (status == 0)
        found: dict[str, Any] = answer
        return found

    return explained


def on_ours(name: str, namespace: str, *containers: Object, **spec: Any) -> Object:
    """A pod that wants a GPU of NODE."""
    made = pod(name, namespace, *containers, **spec)
    made["metadata"]["annotations"] = dict(ON_OURS)
    return made


def verdict(cluster: Cluster, name: str, namespace: str) -> tuple[bool, str] | None:
    """Whether the scheduler has placed a pod, and its words; None before it has looked."""
    found = cluster.get("pods", name, namespace)
    for each in found["status"].get("conditions", []):
        if each["type"] == "PodScheduled":
            return each["status"] == "True", each.get("message", "")
    return None


def unplaced(cluster: Cluster, name: str, namespace: str) -> str:
    """Waits until the scheduler has found no place, and answers its words."""

    def is_unplaced() -> str | None:
        decided = verdict(cluster, name, namespace)
        assert decided is None or not decided[0], "the scheduler has placed it"
        return decided[1] if decided else None

    return cluster.wait_for(is_unplaced, what=f"the scheduler's word on {name}", timeout_s=30)


def placed(cluster: Cluster, name: str, namespace: str) -> str:
    """Waits until the scheduler has placed a pod, and answers the node."""
    cluster.wait_for(
        lambda: (verdict(cluster, name, namespace) or (False, ""))[0], what=f"a node for {name}", timeout_s=60
    )
    return str(cluster.get("pods", name, namespace)["spec"]["nodeName"])


def causes(answer: dict[str, Any]) -> set[str]:
    return {finding["cause"] for finding in answer["findings"]}


def check_blocked(
    cluster: Cluster, explain: Explain, name: str, namespace: str, cause: str
) -> dict[str, Any]:
    """The scheduler finds no place, and we say why."""
    words = unplaced(cluster, name, namespace)
    answer = explain("pod", name)
    assert causes(answer) == {cause}, answer
    assert answer["scheduler"] == words
    assert answer["fitsOn"] == []
    assert answer["findings"][0]["fix"]
    return answer


SHORT: Final = {
    "memory": ([container(gpumem=8000), container("b", gpumem=5000)], container(gpumem=4000)),
    "cores": (
        [container(gpumem=100, gpucores=80), container("b", gpumem=6000, gpucores=80)],
        container(gpumem=100, gpucores=30),
    ),
    "whole-gpu-shared": ([container(gpumem=8000), container("b", gpumem=5000)], container(vgpu=1)),
}
"""What holds both GPUs, and what then fits on none."""


@pytest.mark.parametrize("cause", list(SHORT))
def test_what_is_short_on_every_gpu_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain, cause: str
) -> None:
    holders, wanted = SHORT[cause]
    cluster.api.create(on_ours("holder", namespace, *holders))
    placed(cluster, "holder", namespace)
    cluster.api.create(on_ours("late", namespace, wanted))
    answer = check_blocked(cluster, explain, "late", namespace, cause)
    looks = {look["uuid"]: look["short"] for node in answer["nodes"] for look in node["gpus"]}
    assert len(looks) >= len(SIZES_MIB)
    cluster.delete("pods", "holder", namespace, grace_s=0)
    assert placed(cluster, "late", namespace) == NODE


def test_places_that_are_used_up_are_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    for index in range(4):
        cluster.api.create(on_ours(f"small-{index}", namespace, container(gpumem=10)))
        placed(cluster, f"small-{index}", namespace)
    cluster.api.create(on_ours("late", namespace, container(gpumem=10)))
    check_blocked(cluster, explain, "late", namespace, "shares")
    cluster.delete("pods", "small-0", namespace, grace_s=0)
    assert placed(cluster, "late", namespace) == NODE


def test_a_tainted_gpu_is_named(cluster: Cluster, namespace: str, gpus: Object, explain: Explain) -> None:
    taint = {"key": f"{names.DRIVER}/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    for device in gpus["spec"]["devices"]:
        device["taints"] = [{**taint, "timeAdded": "2026-01-01T00:00:00Z"}]
    cluster.apply(gpus)
    if "taints" not in cluster.get("resourceslices", gpus["metadata"]["name"])["spec"]["devices"][0]:
        pytest.skip("this API server drops device taints (gate DRADeviceTaints, on from 1.36)")
    cluster.api.create(on_ours("late", namespace, container(gpumem=100)))
    answer = check_blocked(cluster, explain, "late", namespace, "gpu-tainted")
    assert "xid-79" in answer["findings"][0]["what"]
    for device in gpus["spec"]["devices"]:
        del device["taints"]
    cluster.apply(gpus)
    assert placed(cluster, "late", namespace) == NODE


def test_a_cordoned_gpu_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    version = served_version(Kube.connect(kubeconfig=str(cluster.kubeconfig), timeout_s=10))
    if version is None:
        pytest.skip("this API server has no DeviceTaintRule (on by default from 1.37)")
    options = ["--kubeconfig", str(cluster.kubeconfig)]
    uuids = [device["attributes"]["uuid"]["string"] for device in gpus["spec"]["devices"]]
    for uuid in uuids:
        assert main(["cordon", uuid, *options]) == 0
    try:
        cluster.api.create(on_ours("late", namespace, container(gpumem=100)))
        answer = check_blocked(cluster, explain, "late", namespace, "gpu-tainted")
        assert answer["findings"][0]["fix"].startswith("aliquot uncordon ")
    finally:
        for uuid in uuids:
            assert main(["uncordon", uuid, *options]) == 0
    assert placed(cluster, "late", namespace) == NODE
    assert not json.loads(cluster.api.raw(rules_path(version)))["items"]
    assert main(["uncordon", uuids[0], *options]) == 1
    assert "is not cordoned" in capsys.readouterr().err


def test_a_selector_that_no_gpu_meets_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    wanted = ask(memory="1Gi")
    wanted["selectors"] = [
        {"cel": {"expression": f'device.attributes["{names.DRIVER}"].productName == "None such"'}}
    ]
    cluster.api.create(claim("odd", namespace, {"exactly": wanted}))
    cluster.api.create(pod_with("late", namespace, {"name": "gpu", "resourceClaimName": "odd"}))
    answer = check_blocked(cluster, explain, "late", namespace, "selector")
    assert 'productName == "None such"' in answer["findings"][0]["what"]


def test_a_node_that_does_not_take_the_pod_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    cluster.api.create(
        on_ours("late", namespace, container(gpumem=100), nodeSelector={"kubernetes.io/hostname": "node-1"})
    )
    answer = check_blocked(cluster, explain, "late", namespace, "node")
    assert "nodeSelector" in answer["findings"][0]["what"]


def test_requests_that_only_fit_one_by_one_are_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    both = [container(gpumem=7000), container("b", gpumem=7000)]
    cluster.api.create(on_ours("late", namespace, *both))
    check_blocked(cluster, explain, "late", namespace, "several-gpus")


def test_a_missing_template_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    cluster.api.create(pod_with("late", namespace, {"name": "gpu", "resourceClaimTemplateName": "none-such"}))
    cluster.wait_for(lambda: causes(explain("pod", "late")) == {"template-missing"}, what="our word")
    assert not (verdict(cluster, "late", namespace) or (False, ""))[0]
    cluster.api.create(template("none-such", namespace, {"exactly": ask(memory="1Gi")}))
    placed(cluster, "late", namespace)


def test_a_missing_class_is_named(cluster: Cluster, namespace: str, gpus: Object, explain: Explain) -> None:
    wanted = {**ask(memory="1Gi"), "deviceClassName": "none.such"}
    cluster.api.create(claim("odd", namespace, {"exactly": wanted}))
    cluster.api.create(pod_with("late", namespace, {"name": "gpu", "resourceClaimName": "odd"}))
    check_blocked(cluster, explain, "late", namespace, "no-device-class")


def test_a_claim_that_the_budget_refuses_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    cluster.api.create(template("large", namespace, {"exactly": ask(memory="2Gi")}))
    set_budget(cluster, namespace, memory="1Gi")
    wait_used(cluster, namespace, "0Mi")
    cluster.api.create(pod_with("late", namespace, {"name": "gpu", "resourceClaimTemplateName": "large"}))
    cluster.wait_for(
        lambda: causes(explain("pod", "late")) == {"claim-refused"}, what="the refusal of the claim"
    )
    assert "would exceed the namespace's budget" in explain("pod", "late")["findings"][0]["what"]
    assert not (verdict(cluster, "late", namespace) or (False, ""))[0]


def test_a_refusal_of_a_controllers_pods_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    set_budget(cluster, namespace, memory="1Gi")
    wait_used(cluster, namespace, "0Mi")
    labels = {"app": "late"}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "late", "namespace": namespace},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container(gpumem=8000)]},
                },
            },
        }
    )

    def is_named() -> bool:
        try:
            return "budget" in explain("deployment/late")["findings"][0]["what"]
        except (AssertionError, IndexError):
            return False

    cluster.wait_for(is_named, what="the refusal of the Deployment's pod")
    assert causes(explain("deployment/late")) == {"refused"}
    assert cluster.list("pods", namespace) == []


def test_a_node_without_an_agent_is_named(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain
) -> None:
    cluster.api.create(on_ours("late", namespace, container(gpumem=100)))
    assert placed(cluster, "late", namespace) == NODE  # as the scheduler knows no better
    cluster.wait_for(
        lambda: causes(explain("pod", "late")) == {"prepare-failing"}, what="kubelet's word on the claim"
    )
    [finding] = explain("pod", "late")["findings"]
    assert "no agent runs on node-2" in finding["fix"]


def test_a_pod_outside_the_opted_in_namespaces_is_told(
    cluster: Cluster, plain_namespace: str, gpus: Object, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.api.create(pod("late", plain_namespace, container(gpumem=100)))
    assert "Insufficient nvidia.com/gpumem" in unplaced(cluster, "late", plain_namespace)
    words = ["explain", "pod/late", "--kubeconfig", str(cluster.kubeconfig), "-n", plain_namespace]
    assert main(words) == 3
    said = capsys.readouterr().out
    assert "not-converted: " in said
    assert f"kubectl label namespace {plain_namespace} aliquot.dev/inject=enabled" in said


def test_a_manifest_that_admission_refuses_is_told(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain, tmp_path: Any
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(on_ours("late", namespace, container(gpumem=99999))))
    answer = explain("-f", str(file))
    assert causes(answer) == {"refused"}
    assert "no GPU that this pod may use is that large" in answer["findings"][0]["what"]
    assert not cluster.list("pods", namespace)


def test_the_scheduler_does_what_was_foretold(
    cluster: Cluster, namespace: str, gpus: Object, explain: Explain, tmp_path: Any
) -> None:
    """Random pods, each foretold from its manifest, then given to the scheduler."""
    chance = random.Random(20261130)
    file, seen = tmp_path / "pod.yaml", set()
    living: list[str] = []
    for number in range(16):
        name = f"random-{number}"
        wanted: dict[str, Any] = {"gpumem": chance.choice([10, 900, 2500, 5000, 9000])}
        if chance.random() < 0.5:
            wanted["gpucores"] = chance.choice([10, 40, 90])
        if chance.random() < 0.25:
            wanted["vgpu"] = 2
            wanted["gpumem"] = min(wanted["gpumem"], 5000)
        if chance.random() < 0.1:
            wanted = {"vgpu": 1}
        containers = [container(**wanted)]
        if chance.random() < 0.3:
            containers.append(container("more", gpumem=chance.choice([10, 3000])))
        made = on_ours(name, namespace, *containers)
        file.write_text(json.dumps(made))
        foretold = explain("-f", str(file))
        cluster.api.create(made)
        decided, words = cluster.wait_for(
            lambda name=name: verdict(cluster, name, namespace),  # type: ignore[misc]  # binds now
            what=f"the scheduler's word on {name}",
        )
        assert foretold["fitsOn"] == ([NODE] if decided else []), (wanted, words, foretold)
        seen.add(decided)
        if decided:
            living.append(name)
        else:
            cluster.delete("pods", name, namespace, grace_s=0)
        if len(living) > 2:
            cluster.delete("pods", living.pop(chance.randrange(len(living))), namespace, grace_s=0)
    assert seen == {True, False}
