# SPDX-License-Identifier: Apache-2.0
"""Tenants of one GPU get what they asked for, exactly, and nobody else is touched."""

import re

import pytest

from aliquot_api import names
from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.system.installation import Installation
from tests.system.workloads import MIB, Tenant, gpu_pod, holding, share_claim, share_request

LIMIT_MIB = 8000
PAGE_BYTES = 2 * MIB


def test_two_tenants_fill_their_shares_of_one_gpu(aliquot: Installation, tenant: Tenant, node: str) -> None:
    tenant.create(gpu_pod("c", vgpu=1, gpumem=LIMIT_MIB))
    tenant.wait_said("c", "device")  # one by one: docs/troubleshooting.md on Kubernetes 1.36
    tenant.create(gpu_pod("python", vgpu=1, gpumem=LIMIT_MIB, command=["python3", "/usr/local/bin/fill.py"]))
    for pod in ("c", "python"):
        device = tenant.wait_said(pod, "device")
        assert device["name"].startswith("Simulated")
        assert device["total_mib"] == LIMIT_MIB
    tenant.create(gpu_pod("third", vgpu=1, gpumem=LIMIT_MIB))

    for pod in ("c", "python"):
        full = tenant.wait_said(pod, "full")
        assert full["result"] == 2
        assert full["free_bytes"] < PAGE_BYTES
        going_on = tenant.wait_said(pod, "going on")
        assert going_on["free_bytes"] > LIMIT_MIB * MIB // 3
        assert LIMIT_MIB * MIB - PAGE_BYTES < aliquot.peak_bytes(node, pod) <= LIMIT_MIB * MIB

    assert aliquot.bed.get("pods", "third", tenant.namespace)["status"]["phase"] == "Pending"
    tenant.delete("c")
    assert tenant.wait_said("third", "device")["total_mib"] == LIMIT_MIB


def test_the_claim_and_the_metrics_show_limit_and_use(
    aliquot: Installation, tenant: Tenant, node: str
) -> None:
    tenant.create(gpu_pod("a", vgpu=1, gpumem=2000, gpucores=30))
    tenant.wait_said("a", "going on")
    claim = tenant.claim_of("a")
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "2000Mi", "cores": "30", "shares": "1"}

    def is_reported() -> Object | None:
        device = tenant.reported("a")
        return device if device and device["data"]["used"] > 0 and device["data"]["denied"] > 0 else None

    device = aliquot.bed.wait_for(is_reported, what="limit and use in the claim's status", timeout_s=20)
    assert device["shareID"] == result["shareID"]
    assert device["data"]["limit"] == 2000 * MIB
    assert device["data"]["used"] <= device["data"]["peak"] <= 2000 * MIB
    assert any(each["type"] == "Ready" and each["status"] == "True" for each in device["conditions"])

    page = aliquot.metrics(node)
    series = rf'^aliquot_share_memory_limit_bytes{{[^}}]*namespace="{tenant.namespace}"[^}}]*}} (\S+)$'
    [limit] = re.findall(series, page, re.MULTILINE)
    assert float(limit) == 2000 * MIB
    assert "hami_" not in page  # an installation asks for HAMi's names


def test_pods_and_containers_of_one_claim_have_its_memory_together(
    aliquot: Installation, tenant: Tenant, node: str
) -> None:
    bed = aliquot.bed
    bed.api.create(share_claim("ours", share_request("gpu", "4000Mi")), namespace=tenant.namespace)
    one = gpu_pod("one", command=("elastic", "2000"))
    [main] = one["spec"]["containers"]
    one["spec"]["containers"] = [main, {**main, "name": "side", "command": ["sleep", "1000"]}]
    tenant.create(holding(one, "ours"))
    bed.wait_for_pod("one", tenant.namespace)
    tenant.create(holding(gpu_pod("two", command=("elastic", "3000")), "ours"))
    tenant.wait_said("two", "part")
    assert "full" not in tenant.said("two")
    assert tenant.sees_mib("one", container="side") == tenant.sees_mib("two") == [4000]
    assert 3000 * MIB < aliquot.used_bytes(node) <= 4000 * MIB

    def shown() -> list[list[str]]:
        return [share["pods"] for share in aliquot.status(node)["shares"]]

    bed.wait_for(lambda: shown() == [["one/main", "one/side", "two/main"]], what="one share of them all")
    tenant.delete("one")
    tenant.wait_said("two", "full")


def test_a_whole_gpu_has_no_shim(aliquot: Installation, tenant: Tenant, node: str) -> None:
    tenant.create(gpu_pod("whole", vgpu=1))
    assert tenant.wait_said("whole", "device")["total_mib"] > 22000
    where = ["sh", "-c", "ls /etc/ld.so.preload /run/aliquot 2>&1; cat /proc/1/maps"]
    seen = aliquot.bed.exec("whole", where, tenant.namespace)
    assert "cannot access '/etc/ld.so.preload'" in seen
    assert "cannot access '/run/aliquot'" in seen
    assert "libcuda" in seen
    assert "libaliquot" not in seen

    device = aliquot.bed.wait_for(
        lambda: tenant.reported("whole"), what="the whole GPU in its claim's status", timeout_s=20
    )
    assert device["data"]["limit"] > 22000 * MIB

    tenant.create(gpu_pod("beside", vgpu=1, gpumem=100))
    aliquot.bed.wait_for(
        lambda: any("cannot allocate" in each["message"] for each in events(tenant, "beside")),
        what="the scheduler to find no room beside a whole GPU",
    )


def events(tenant: Tenant, pod: str) -> list[Object]:
    return tenant.bed.events_of(tenant.bed.get("pods", pod, tenant.namespace))


def test_a_tenant_cannot_move_its_limit_away(tenant: Tenant) -> None:
    moving = "mv /run/aliquot /run/elsewhere; mv /etc/ld.so.preload /etc/elsewhere; exec fill"
    tenant.create(gpu_pod("mover", vgpu=1, gpumem=1000, command=("sh", "-c", f"({moving}) 2>/dev/null")))
    assert tenant.wait_said("mover", "device")["total_mib"] == 1000
    assert tenant.wait_said("mover", "full")["allocated_mib"] < 1000


def test_deleting_everything_leaves_nothing(aliquot: Installation, tenant: Tenant, node: str) -> None:
    for name, memory in (("a", 1000), ("b", 3000)):
        tenant.create(gpu_pod(name, vgpu=1, gpumem=memory))
    for name in ("a", "b"):
        tenant.wait_said(name, "device")
    assert len(aliquot.bed.list("resourceclaimtemplates", tenant.namespace)) == 2
    uids = [tenant.claim_of(name)["metadata"]["uid"] for name in ("a", "b")]
    assert all(any(uid in file for file in aliquot.files(node)) for uid in uids)

    for name in ("a", "b"):
        tenant.delete(name)
    bed = aliquot.bed
    bed.wait_for(lambda: not bed.list("resourceclaims", tenant.namespace), what="no claim")
    bed.wait_for(lambda: not bed.list("resourceclaimtemplates", tenant.namespace), what="no template")
    bed.wait_for(lambda: not aliquot.files(node), what="no share directory, CDI file or checkpoint")
    bed.wait_for(lambda: tenant.namespace not in aliquot.metrics(node), what="no metric series")
    assert aliquot.used_bytes(node) == 0


@pytest.mark.parametrize(
    ("limits", "field", "says"),
    [
        pytest.param({"vgpu": 1, "gpumem": 999999}, "gpumem", "22578", id="larger than any GPU"),
        pytest.param({"vgpu": 1, "gpumem": "0"}, "gpumem", "at least 1", id="zero"),
        pytest.param({"vgpu": 1, "gpumem": "-5"}, "gpumem", "at least 1", id="negative"),
        pytest.param({"vgpu": 1, "gpumem": "1500m"}, "gpumem", "whole", id="fraction"),
        pytest.param({"vgpu": 0, "gpumem": 1000}, "vgpu", "at least 1", id="no GPU, with memory"),
        pytest.param({"vgpu": 1, "gpucores": -1}, "gpucores", "100", id="less than no cores"),
    ],
)
def test_bad_requests_are_refused_in_the_authors_words(
    tenant: Tenant, limits: dict[str, int | str], field: str, says: str
) -> None:
    message = tenant.refusal(gpu_pod("bad", limits=limits))
    assert f"nvidia.com/{field}" in message
    assert says in message


def test_text_for_a_number_is_refused(tenant: Tenant) -> None:
    # The API server refuses what is no quantity by itself, before any webhook.
    assert "quantit" in tenant.refusal(gpu_pod("bad", vgpu=1, gpumem="eight"))


def test_pods_that_ask_for_no_gpu_are_untouched(aliquot: Installation, tenant: Tenant, bed: Cluster) -> None:
    plain = gpu_pod("plain", command=["sleep", "1000"])
    before = bed.audit.mark()
    made = tenant.create(plain)
    assert "resourceClaims" not in made["spec"]
    assert "annotations" not in made["metadata"]
    tenant.bed.wait_for_pod("plain", tenant.namespace)
    assert not bed.audit.requests(since=before, user="aliquot-system:aliquot-webhook", verb="create")
    assert not bed.audit.requests(
        since=before, user="aliquot-system:aliquot-agent", verb="get", namespace=tenant.namespace
    )


def test_a_namespace_without_the_label_is_untouched(aliquot: Installation, bed: Cluster) -> None:
    outsider = Tenant(bed, namespace="outsider", labels={})
    try:
        made = outsider.create(gpu_pod("gpu", vgpu=1, gpumem=1500))
        limits = made["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {names.RESOURCE_COUNT: "1", names.RESOURCE_MEMORY: "1500"}
        assert "resourceClaims" not in made["spec"]
        bed.wait_for(
            lambda: any("Insufficient nvidia.com" in each["message"] for each in events(outsider, "gpu")),
            what="the scheduler to say that no node has the resource",
        )
    finally:
        outsider.remove()
