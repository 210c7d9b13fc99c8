# SPDX-License-Identifier: Apache-2.0
"""What dies may come back: limits hold meanwhile, and nothing is lost."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from aliquot_api import names
from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.system.installation import NAMESPACE, Installation
from tests.system.workloads import (
    MIB,
    Tenant,
    gpu_pod,
    holding,
    share_claim,
    share_config,
    share_request,
)

AWAY_S = float(os.environ.get("ALIQUOT_AWAY_S", "12"))
"""How long the API server is away while pods run and end; the long form is 300.

Kubernetes' own clients try again ever more seldom, and each is waited for afterwards as long again.
"""

pytestmark = pytest.mark.faults


def hand_written_claim(memory: str) -> Object:
    """A claim named `shared`, as a user writes it."""
    return share_claim("shared", share_request("gpu", memory))


def claiming_pod(name: str) -> Object:
    """A pod that uses it."""
    return holding(gpu_pod(name), "shared")


@pytest.fixture
def webhook_is_dead(aliquot: Installation) -> Iterator[None]:
    """No webhook runs during the test."""
    bed = aliquot.bed
    bed.kubectl("-n", NAMESPACE, "scale", "deployment/aliquot-webhook", "--replicas=0")
    selector = "app.kubernetes.io/name=aliquot-webhook"
    bed.wait_for(lambda: not bed.list("pods", NAMESPACE, labels=selector), what="the webhook to be gone")
    yield
    bed.kubectl("-n", NAMESPACE, "scale", "deployment/aliquot-webhook", "--replicas=2")
    aliquot.wait_ready()


@pytest.mark.usefixtures("webhook_is_dead")
def test_with_the_webhook_dead_gpu_pods_are_refused_and_others_start(tenant: Tenant) -> None:
    assert "aliquot" in tenant.refusal(gpu_pod("gpu", vgpu=1, gpumem=1000))
    tenant.create(gpu_pod("plain", command=["sleep", "1000"]))
    tenant.bed.wait_for_pod("plain", tenant.namespace)


def test_with_the_webhook_dead_the_agent_refuses_pods_that_could_lift_their_limit_and_tells_them(
    tenant: Tenant, bed: Cluster, request: pytest.FixtureRequest
) -> None:
    bed.api.create(hand_written_claim("1000Mi"), namespace=tenant.namespace)
    request.getfixturevalue("webhook_is_dead")
    host = {"name": "host", "hostPath": {"path": "/var/lib"}}
    mount = {"name": "host", "mountPath": "/host"}
    lifters: list[tuple[str, Object, Object]] = [
        ("securityContext.privileged", {}, {"securityContext": {"privileged": True}}),
        ("capabilities.add", {}, {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
        ("spec.hostPID", {"hostPID": True}, {}),
        ("hostPath.path", {"volumes": [host]}, {"volumeMounts": [mount]}),
    ]
    for number, (field, spec, container) in enumerate(lifters):
        name = f"lifter-{number}"
        pod = claiming_pod(name)
        pod["spec"] |= spec
        pod["spec"]["containers"][0] |= container
        tenant.create(pod)

        def told(name: str = name, field: str = field) -> bool:
            events = bed.api.list("events", tenant.namespace, fields="reason=GPUShareRefused")
            return any(each["involvedObject"]["name"] == name and field in each["message"] for each in events)

        bed.wait_for(told, what=f"an event on pod {name}", timeout_s=60)
        assert bed.get("pods", name, tenant.namespace)["status"]["phase"] == "Pending"
        bed.delete("pods", name, tenant.namespace)


def test_a_killed_agent_comes_back_and_running_pods_keep_their_limit(
    aliquot: Installation, tenant: Tenant, node: str
) -> None:
    tenant.create(gpu_pod("before", vgpu=1, gpumem=4000))
    tenant.wait_said("before", "device")
    aliquot.kill_agent(node)
    assert tenant.wait_said("before", "full")["result"] == 2
    assert aliquot.peak_bytes(node, "before") <= 4000 * MIB

    aliquot.wait_ready()
    tenant.create(gpu_pod("after", vgpu=1, gpumem=4000))
    assert tenant.wait_said("after", "device")["total_mib"] == 4000
    device = aliquot.bed.wait_for(
        lambda: tenant.reported("before"), what="the new agent to report the old share", timeout_s=20
    )
    assert 0 < device["data"]["used"] <= 4000 * MIB


def test_an_agent_killed_between_prepare_and_start_loses_nothing(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    pod = gpu_pod("late", vgpu=1, gpumem=4000)
    hold = {"name": "hold", "command": ["sh", "-c", "trap 'exit 0' USR1; while :; do sleep 0.1; done"]}
    pod["spec"]["initContainers"] = [pod["spec"]["containers"][0] | hold | {"resources": {}}]
    tenant.create(pod)

    def holds() -> bool:
        """Claims are prepared before a pod's first container starts."""
        status = tenant.pod("late").get("status") or {}
        return any("running" in each["state"] for each in status.get("initContainerStatuses") or [])

    bed.wait_for(holds, what="the claim to be prepared and the container to wait")
    aliquot.kill_agent(node)
    bed.exec("late", ["sh", "-c", "kill -USR1 1"], tenant.namespace, container="hold")
    assert tenant.wait_said("late", "device")["total_mib"] == 4000
    assert tenant.wait_said("late", "full")["result"] == 2
    aliquot.wait_ready()


def test_a_restarted_kubelet_gets_the_gpus_published_again(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    tenant.create(gpu_pod("before", vgpu=1, gpumem=4000))
    tenant.wait_said("before", "going on")
    bed.restart(f"{node}/kubelet")  # a starting kubelet deletes its node's slices
    tenant.create(gpu_pod("after", vgpu=1, gpumem=4000))
    assert tenant.wait_said("after", "device")["total_mib"] == 4000
    assert aliquot.devices(node)


def test_a_rebooted_node_prepares_its_claims_again(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    pod = gpu_pod("phoenix", vgpu=1, gpumem=4000)
    pod["spec"]["restartPolicy"] = "Always"
    tenant.create(pod)
    tenant.wait_said("phoenix", "going on")
    first = tenant.claim_of("phoenix")["metadata"]["uid"]
    bed.reboot(node)

    def is_back() -> bool:
        status = bed.get("pods", "phoenix", tenant.namespace)["status"]["containerStatuses"][0]
        return status["restartCount"] > 0 and "going on" in tenant.said("phoenix")

    bed.wait_for(is_back, what="the pod to run again with its share", timeout_s=120)
    assert tenant.said("phoenix")["device"]["total_mib"] == 4000
    assert tenant.claim_of("phoenix")["metadata"]["uid"] == first
    aliquot.wait_ready()
    # The API server still has connections to the webhook of before: one request each times out.
    probe = gpu_pod("probe", vgpu=1, gpumem=1)
    bed.wait_for(
        lambda: bed.api.create(probe, namespace=tenant.namespace, dry_run=True),
        what="admission to work again",
    )


@pytest.mark.parametrize("agent_is_down", [False, True], ids=["while the agent runs", "while it is down"])
def test_force_deleted_pods_leave_nothing(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster, agent_is_down: bool
) -> None:
    tenant.create(gpu_pod("forced", vgpu=1, gpumem=4000))
    tenant.wait_said("forced", "device")
    if agent_is_down:
        bed.pause(f"{node}/kubelet")  # which would start the agent again
        try:
            aliquot.kill_agent(node)
            bed.delete("pods", "forced", tenant.namespace, grace_s=0)
            assert aliquot.files(node)
        finally:
            bed.resume(f"{node}/kubelet")
    else:
        bed.delete("pods", "forced", tenant.namespace, grace_s=0)
    bed.wait_for(lambda: not aliquot.files(node), what="no file of the claim", timeout_s=150)
    assert names.DRIVER not in str(bed.list("resourceclaims", tenant.namespace))
    aliquot.wait_ready(timeout_s=150)
    bed.wait_for(lambda: tenant.namespace not in aliquot.metrics(node), what="no metric series")


def test_claims_that_cannot_be_held_here_are_refused_in_words_on_the_pod(
    tenant: Tenant, node: str, bed: Cluster
) -> None:
    """What no scheduler and no webhook of ours let through."""
    tenant.create(gpu_pod("model", vgpu=1, gpumem=500, command=("sleep", "1000")))
    bed.wait_for_pod("model", tenant.namespace)
    model = tenant.claim_of("model")["status"]["allocation"]["devices"]
    unknown = share_config() | {"parameters": {"apiVersion": f"{names.DRIVER}/v9", "kind": "ShareConfig"}}
    cases: dict[str, tuple[Object, list[Object], str]] = {
        "elsewhere": ({"pool": "node-9"}, [], f"is of pool node-9, this node's pool is {node}"),
        "uncounted": ({"consumedCapacity": {}}, [], "does not say how much may be used"),
        "unknown": ({}, [{"source": "FromClaim", "opaque": unknown}], "apiVersion"),
        "contradictory": (
            {},
            [
                {"source": "FromClass", "opaque": share_config(sharing="shim")},
                {"source": "FromClaim", "opaque": share_config(sharing="exclusive")},
            ],
            "asks for all of device",
        ),
    }
    bed.pause("scheduler")
    try:
        for name in cases:
            tenant.create(gpu_pod(name, vgpu=1, gpumem=500))
        for name, (change, config, _) in cases.items():
            bed.wait_for(partial(tenant.has_claims, name), what=f"the claim of {name}")
            [result] = model["results"]
            given = result | {"shareID": str(uuid.uuid4())} | change
            allocation = {"devices": {"results": [given], "config": config}}
            tenant.place(name, node=node, allocation=allocation)
        for name, (_, _, words) in cases.items():
            told = partial(tenant.told, name, "GPUShareRefused")
            [message] = bed.wait_for(told, what=f"the event on pod {name}")
            assert words in message
            assert tenant.pod(name)["status"]["phase"] == "Pending"
    finally:
        bed.resume("scheduler")


def test_a_restarted_containerd_disturbs_nobody(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    tenant.create(gpu_pod("before", vgpu=1, gpumem=4000))
    tenant.wait_said("before", "going on")
    bed.restart(f"{node}/containerd")
    tenant.create(gpu_pod("after", vgpu=1, gpumem=4000))
    assert tenant.wait_said("after", "device")["total_mib"] == 4000
    [status] = bed.get("pods", "before", tenant.namespace)["status"]["containerStatuses"]
    assert status["restartCount"] == 0


@pytest.mark.timeout(AWAY_S + 300)
def test_what_ends_while_the_server_is_away_is_undone_meanwhile(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    pod = gpu_pod("ending", vgpu=1, gpumem=1000)
    pod["spec"]["restartPolicy"] = "Never"
    tenant.create(pod)
    tenant.create(gpu_pod("staying", vgpu=1, gpumem=1000))
    for name in ("ending", "staying"):
        tenant.wait_said(name, "going on")
    ending, staying = (tenant.claim_of(name)["metadata"]["uid"] for name in ("ending", "staying"))
    [share] = [each for each in aliquot.status(node)["shares"] if each["pods"] == ["ending/main"]]
    books = aliquot.books(node)
    [group] = [each["group"] for each in books["groups"] if each["host"] == "ending" and each["used"] > 0]
    pids = [each["pid"] for each in books["processes"] if each["group"] == group and each["alive"]]
    address = aliquot.pod_of("aliquot-agent", node=node)["status"]["podIP"]
    restarts = aliquot.agent_status(node)["restartCount"]
    bed.stop("apiserver")
    back_s = time.monotonic() + AWAY_S
    try:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

        def is_undone() -> bool:
            files = " ".join(aliquot.files(node))
            return ending not in files and staying in files

        bed.wait_for(is_undone, what="the claim of the pod that ended to be undone", timeout_s=60)
        bed.wait_for(
            lambda: share["share"] not in aliquot.page_at(address, "status"), what="its share to be forgotten"
        )
        bed.wait_for(
            lambda: time.monotonic() > back_s and "ok" in aliquot.page_at(address, "healthz"),
            what="the agent to live on",
            timeout_s=AWAY_S + 30,
        )
    finally:
        bed.start("apiserver")
    bed.wait_ready()
    aliquot.wait_ready()
    assert bed.get("pods", "staying", tenant.namespace)["status"]["phase"] == "Running"
    assert aliquot.agent_status(node)["restartCount"] == restarts


def test_a_claim_made_anew_under_the_same_name_gets_its_own_share(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    def make(memory: str, pod: str) -> str:
        made = bed.api.create(hand_written_claim(memory), namespace=tenant.namespace)
        tenant.create(claiming_pod(pod))
        return str(made["metadata"]["uid"])

    first = make("1000Mi", "one")
    assert tenant.wait_said("one", "device")["total_mib"] == 1000
    bed.delete("pods", "one", tenant.namespace, grace_s=0, timeout_s=None)
    bed.delete("resourceclaims", "shared", tenant.namespace)
    second = make("2000Mi", "two")
    assert tenant.wait_said("two", "device", timeout_s=150)["total_mib"] == 2000
    assert first != second
    bed.wait_for(lambda: first not in " ".join(aliquot.files(node)), what="nothing of the first claim")
