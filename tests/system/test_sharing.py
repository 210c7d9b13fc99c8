# SPDX-License-Identifier: Apache-2.0
"""Several GPUs on the real scheduler: shared by the library, by time slices and by MPS, several in a pod."""

import re
from collections.abc import Iterator
from typing import Final

import pytest

from aliquot_agent.mpswatch import EVENT
from aliquot_api import names
from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.system.images import BUILD
from tests.system.installation import NAMESPACE, TEST_VALUES, Installation, gates, kubernetes_version
from tests.system.workloads import Tenant, gpu_pod, holding, share_claim, share_request
from tests.testkit.chart import merged

RPC_FAILURE: Final = 806
WAYS: Final = {"shim": "shim", "timeslice=short": "timeslice", "mps": "mps"}
VALUES: Final = {
    "simulatedGpu": {"gpus": "l4:4"},
    "agent": {"settings": {"hamiMetrics": True}},
    "nodeConfiguration": {
        "defaults": {"gpus": [{"match": [1], "sharing": "timeslice=short"}, {"match": [2], "sharing": "mps"}]}
    },
}
SMI: Final = "/var/lib/aliquot-sim/lib/aliquot-smi"
SETTINGS: Final = f"{SMI} --query-gpu=compute_mode --format=csv,noheader; {SMI} compute-policy -l"


@pytest.fixture(scope="module")
def shared() -> Iterator[Installation]:
    """Aliquot on a node with a GPU of each way, and a second one of the library's."""
    with Cluster.up(name="sharing", kubernetes=kubernetes_version(), gates=gates()) as bed:
        installation = Installation(bed, values=merged(TEST_VALUES, VALUES))
        installation.install()
        try:
            installation.wait_ready()
            yield installation
        finally:
            bed.collect(BUILD / "failures" / "sharing")


def asking(
    name: str, sharing: str | None, *, command: list[str], gpumem: int = 1000, gpucores: int = 0
) -> Object:
    pod = gpu_pod(name, command=command, vgpu=1, gpumem=gpumem, gpucores=gpucores)
    if sharing is not None:
        pod["metadata"]["annotations"] = {names.ANNOTATION_SHARING: sharing}
    return pod


def gpu_of(shared: Installation, tenant: Tenant, pod: str) -> Object:
    """Attributes of the GPU that a pod was given."""
    [result] = tenant.claim_of(pod)["status"]["allocation"]["devices"]["results"]
    [node] = shared.bed.nodes
    [device] = [each for each in shared.devices(node) if each["name"] == result["device"]]
    return dict(device["attributes"])


def settings(shared: Installation) -> list[str]:
    """Compute modes of the four GPUs, then their time slices, by the driver's tool."""
    agent = shared.pod_of("aliquot-agent")["metadata"]["name"]
    told = shared.bed.exec(agent, ["sh", "-c", SETTINGS], NAMESPACE, container="sharing")
    return [line.split(":")[-1].strip() for line in told.splitlines()]


PLAIN: Final = ["Default"] * 8


def test_each_way_has_its_gpu_and_leaves_nothing(shared: Installation) -> None:
    bed = shared.bed
    tenant = Tenant(bed, namespace="tenant", labels={names.INJECT_LABEL: names.INJECT_ENABLED})
    assert settings(shared) == PLAIN
    unknown = asking("x", "timeslice=long", command=["elastic", "10"])
    # It names what there is as soon as the API server trusts the webhook, and the webhook knows the slice.
    bed.wait_for(lambda: "timeslice=short" in tenant.refusal(unknown), what="a length to be refused")

    for way in WAYS:
        name = way.partition("=")[0]
        tenant.create(asking(name, way, command=["elastic", "100"], gpucores=40))
    tenant.create(asking("unnamed", None, command=["elastic", "100"]))
    for name in ("shim", "timeslice", "mps", "unnamed"):
        tenant.wait_said(name, "full")
        wanted = "shim" if name == "unnamed" else name
        assert gpu_of(shared, tenant, name)["sharing"]["string"] == wanted
        assert "total 1000" in tenant.said(name), "the library holds memory in every way"
    modes = ["Default", "Default", "Exclusive_Process", "Default"]
    assert settings(shared) == [*modes, "Default", "Short", "Default", "Default"]

    # Full for its way: it waits, although other GPUs have room.
    tenant.create(asking("late", "mps", command=["elastic", "100"], gpumem=22500))
    bed.wait_for(
        lambda: any(each["reason"] == "FailedScheduling" for each in bed.events_of(tenant.pod("late"))),
        what="the scheduler to find no GPU of that way",
    )
    environment = bed.exec("mps", ["env"], tenant.namespace)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40" in environment
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M" in environment
    assert "CUDA_MPS" not in bed.exec("timeslice", ["env"], tenant.namespace)

    old = replace_the_agent(shared, tenant)
    lose_the_daemon(shared, tenant)
    tenant.remove()
    bed.wait_for(lambda: agent_of(shared, old) is None, what="the old pod to end", timeout_s=60)
    bed.wait_for(lambda: settings(shared) == PLAIN, what="every GPU to be plain again", timeout_s=30)
    [node] = bed.nodes
    directories = ["/usr/bin/find", "/run/aliquot-agent", "-path", "*/mps/*"]
    bed.wait_for(lambda: not bed.node_exec(node, directories).split(), what="no directory of a daemon")


def agent_of(shared: Installation, uid: str) -> Object | None:
    """An agent's pod, while it is there."""
    pods = shared.bed.list("pods", NAMESPACE, labels="app.kubernetes.io/name=aliquot-agent")
    return next((pod for pod in pods if pod["metadata"]["uid"] == uid), None)


def replace_the_agent(shared: Installation, tenant: Tenant) -> str:
    """Its programs go on, and so the old pod, whose UID this is; the new one gives the next share."""
    old = str(shared.pod_of("aliquot-agent")["metadata"]["uid"])
    shared.bed.kubectl("-n", NAMESPACE, "rollout", "restart", "daemonset/aliquot-agent")

    def replaced() -> bool:
        pod = agent_of(shared, old)
        return pod is not None and "deletionTimestamp" in pod["metadata"]

    shared.bed.wait_for(replaced, what="the new pod to be ready", timeout_s=120)
    tenant.create(asking("during", "mps", command=["elastic", "100"]))
    tenant.wait_said("during", "full")
    assert "error" not in tenant.said("mps")
    assert replaced(), "the old pod stays"
    return old


def lose_the_daemon(shared: Installation, tenant: Tenant) -> None:
    """Its tenants' programs end with a clear error, and it is said; the next ones find a new daemon."""
    agent = shared.pod_of("aliquot-agent")["metadata"]["name"]
    kill = "kill -9 $(cat /run/aliquot-agent/mps/*/pipe/nvidia-cuda-mps-control.pid)"
    shared.bed.exec(agent, ["sh", "-c", kill], NAMESPACE, container="sharing")
    error = shared.bed.wait_for(lambda: tenant.said("mps").get("error"), what="the program to fail")
    assert error["result"] == RPC_FAILURE
    shared.bed.wait_for(
        lambda: EVENT in {event["reason"] for event in shared.bed.events_of(tenant.pod("mps"))},
        what="the event of its pod",
    )
    [node] = shared.bed.nodes
    lost = 'aliquot_gpu_mps_daemon_lost_total{gpu_uuid="%s"} 1.0'
    assert lost % gpu_of(shared, tenant, "mps")["uuid"]["string"] in shared.metrics(node)
    for name in ("shim", "timeslice"):
        assert "error" not in tenant.said(name)
    tenant.delete("late")
    tenant.create(asking("next", "mps", command=["elastic", "100"]))
    tenant.wait_said("next", "full")


def test_a_container_may_have_shares_of_several_gpus(shared: Installation) -> None:
    """From one request, from several requests of a claim, and from several claims."""
    bed, idle = shared.bed, ("sleep", "1000")
    tenant = Tenant(bed, namespace="several", labels={names.INJECT_LABEL: names.INJECT_ENABLED})
    first, last = share_request("first", "1000Mi", minor=0), share_request("last", "700Mi", minor=3)
    apart = {"distinctAttribute": f"{names.DRIVER}/uuid"}
    for claim in (
        share_claim("both", first, last, constraints=[apart]),
        share_claim("one", first),
        share_claim("another", last),
    ):
        bed.api.create(claim, namespace=tenant.namespace)
    tenant.create(gpu_pod("count", vgpu=2, gpumem=1500, command=idle))
    tenant.create(holding(gpu_pod("requests", command=idle), "both"))
    tenant.create(holding(gpu_pod("claims", command=idle), "one", "another"))
    for pod, sizes in (("count", [1500, 1500]), ("requests", [1000, 700]), ("claims", [1000, 700])):
        bed.wait_for_pod(pod, tenant.namespace)
        assert tenant.sees_mib(pod) == sizes, pod
    reported = bed.wait_for(lambda: tenant.claim_of("count")["status"].get("devices"), what="its report")
    assert len({device["device"] for device in reported}) == 2
    [node] = bed.nodes
    under_hamis_names = f'hami_vgpu_memory_limit_bytes{{[^}}]*namespace="{tenant.namespace}"'
    bed.wait_for(
        lambda: len(re.findall(under_hamis_names, shared.metrics(node))) == 6, what="two series of each pod"
    )
    tenant.remove()
