# SPDX-License-Identifier: Apache-2.0
"""The node agent at work: what it publishes, leaves out, is told to do, and what it does about sick GPUs."""

import json
import os
import time
from collections.abc import Callable, Iterator

import pytest

from aliquot_api import names
from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.system.installation import NAMESPACE, Installation, kubernetes_version
from tests.system.workloads import MIB, Tenant, gpu_pod

CHURN_S = float(os.environ.get("ALIQUOT_CHURN_S", "12"))
"""How long pods come and go while nothing may be written; the long form is 300."""
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
AGENT_USER = f"{NAMESPACE}:aliquot-agent"
OTHER_DRIVER = "gpu.nvidia.com"
OF_HAMI = "hami.io/node-nvidia-register"
DROPS_TAINTS = kubernetes_version() == "1.35"


def device(aliquot: Installation, node: str) -> Object | None:
    """The node's GPU as it is published; None when it is not."""
    return next(iter(aliquot.devices(node)), None)


def node_events(bed: Cluster, node: str) -> str:
    """What was said about a node."""
    found = bed.api.list("events", "default", fields=f"involvedObject.name={node},involvedObject.kind=Node")
    return "\n".join(f"{each['reason']}: {each.get('message')}" for each in found)


def timed(condition: Callable[[], object], *, bed: Cluster, what: str, timeout_s: float) -> float:
    """How long it took until the condition held."""
    start_s = time.monotonic()
    bed.wait_for(condition, what=what, timeout_s=timeout_s)
    return time.monotonic() - start_s


@pytest.fixture
def well_again(aliquot: Installation, node: str) -> Iterator[None]:
    """After the test the GPU is well and published without taint."""
    yield
    aliquot.inject(node, "recover", "--gpu", "0")

    def is_well() -> bool:
        found = device(aliquot, node)
        return found is not None and not found.get("taints")

    aliquot.bed.wait_for(is_well, what="the GPU to be well", timeout_s=40)


@pytest.fixture
def configure(aliquot: Installation) -> Iterator[Callable[[str], None]]:
    """Writes the node configuration; afterwards there is none."""

    def write(text: str) -> None:
        head = "apiVersion: aliquot.dev/v1alpha1\nkind: NodeConfig\n"
        aliquot.bed.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "aliquot-node-config", "namespace": NAMESPACE},
                "data": {"config.yaml": head + text},
            }
        )

    yield write
    aliquot.bed.delete("configmaps", "aliquot-node-config", NAMESPACE)


@pytest.mark.usefixtures("well_again")
def test_a_sick_gpu_takes_no_new_pods_until_it_was_reset(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    def is_out() -> bool:
        found = device(aliquot, node)
        return found is None if DROPS_TAINTS else bool(found and found.get("taints"))

    def health_in_pod() -> str:
        statuses = bed.get("pods", "running", tenant.namespace)["status"]["containerStatuses"]
        resources = [each for status in statuses for each in status.get("allocatedResourcesStatus") or []]
        return " ".join(one["health"] for each in resources for one in each["resources"])

    tenant.create(gpu_pod("running", vgpu=1, gpumem=1000))
    tenant.wait_said("running", "going on")
    aliquot.inject(node, "xid", "--gpu", "0", "--code", "31")  # a program's own fault
    aliquot.inject(node, "xid", "--gpu", "0", "--code", "79")
    assert timed(is_out, bed=bed, what="the GPU to be kept from new pods", timeout_s=20) < 10
    if not DROPS_TAINTS:
        [taint] = (device(aliquot, node) or {})["taints"]
        assert (taint["key"], taint["value"]) == (f"{names.DRIVER}/unhealthy", "xid-79")
        assert taint["effect"] == "NoSchedule"
        bed.wait_for(lambda: health_in_pod() == "Unhealthy", what="the pod's status to show it", timeout_s=60)
    assert "GpuUnhealthy" in bed.wait_for(
        lambda: text if "xid" in (text := node_events(bed, node)).lower() else None, what="an event"
    )
    tenant.create(gpu_pod("new", vgpu=1, gpumem=1000))
    bed.wait_for(
        lambda: any(
            condition["type"] == "PodScheduled" and condition["status"] == "False"
            for condition in bed.get("pods", "new", tenant.namespace)["status"].get("conditions", [])
        ),
        what="the new pod to be kept waiting",
    )
    assert tenant.said("running")  # nobody was disturbed
    assert bed.get("pods", "running", tenant.namespace)["status"]["phase"] == "Running"

    aliquot.inject(node, "recover", "--gpu", "0")
    assert tenant.wait_said("new", "device")["total_mib"] == 1000
    assert "GpuRecovered" in node_events(bed, node)


@pytest.mark.skipif(DROPS_TAINTS, reason="the API server of 1.35 drops device taints: nothing can be evicted")
@pytest.mark.usefixtures("well_again")
def test_after_a_memory_error_pods_go_where_node_configuration_says_so(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster, configure: Callable[[str], None]
) -> None:
    configure("defaults: {health: {effect: NoExecute}}\n")
    tenant.create(gpu_pod("ended", vgpu=1, gpumem=1000))
    tenant.wait_said("ended", "going on")
    aliquot.inject(node, "ecc", "--gpu", "0")
    bed.wait_for(
        lambda: not bed.list("pods", tenant.namespace), what="the pod to be ended by the taint", timeout_s=40
    )
    [taint] = (device(aliquot, node) or {})["taints"]
    assert (taint["key"], taint["effect"]) == (f"{names.DRIVER}/unhealthy", "NoExecute")
    assert taint["value"] in ("xid-48", "ecc")  # the driver reports it, and counts it


@pytest.mark.usefixtures("well_again")
def test_a_gpu_that_fell_off_the_bus_is_out_and_back(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    aliquot.inject(node, "lost", "--gpu", "0")

    def is_out() -> bool:
        found = device(aliquot, node)
        return found is None if DROPS_TAINTS else bool(found and found.get("taints"))

    assert timed(is_out, bed=bed, what="the lost GPU to be kept from new pods", timeout_s=20) < 10
    bed.wait_for(
        lambda: "lost" in json.dumps(aliquot.status(node)) or "bus" in json.dumps(aliquot.status(node)),
        what="the status to say so",
    )
    aliquot.inject(node, "recover", "--gpu", "0")
    tenant.create(gpu_pod("after", vgpu=1, gpumem=1000))
    assert tenant.wait_said("after", "device")["total_mib"] == 1000


def test_node_configuration_counts_at_once_and_a_bad_one_changes_nothing(
    aliquot: Installation, configure: Callable[[str], None], node: str, bed: Cluster
) -> None:
    def shown(capacity: str) -> str:
        found = device(aliquot, node)
        return str(found["capacity"][capacity]["value"]) if found else ""

    before = shown("memory")
    configure(f"nodes: [{{names: [{node}], shares: 3, reserve: 1Gi}}]")
    bed.wait_for(lambda: shown("shares") == "3", what="three shares to be published", timeout_s=20)
    assert int(shown("memory").removesuffix("Mi")) == int(before.removesuffix("Mi")) - 1024
    configure(f"nodes: [{{names: [{node}], shares: 4, memoryFactor: 2}}]")
    bed.wait_for(
        lambda: "NodeConfigInvalid" in node_events(bed, node), what="an event that names it", timeout_s=20
    )
    assert "not oversubscribed" in node_events(bed, node)
    assert "aliquot_node_config_invalid 1.0" in aliquot.metrics(node)
    assert shown("shares") == "3"
    configure("defaults: {gpus: [{match: [0], sharing: exclusive}]}")
    bed.wait_for(lambda: shown("shares") == "1", what="the GPU to be one tenant's", timeout_s=20)
    assert (device(aliquot, node) or {})["attributes"]["sharing"] == {"string": "exclusive"}
    bed.delete("configmaps", "aliquot-node-config", NAMESPACE)
    bed.wait_for(
        lambda: (shown("shares"), shown("memory")) == ("16", before), what="the defaults", timeout_s=20
    )


def test_a_gpu_that_others_hand_out_is_not_published_and_it_is_said_whose_it_is(
    aliquot: Installation, node: str, bed: Cluster
) -> None:
    """A device plugin's, then another driver's, then HAMi's."""
    uuid = (device(aliquot, node) or {})["attributes"]["uuid"]["string"]
    path = bed.node_path(node, CHECKPOINT)
    before = path.read_bytes() if path.exists() else None

    def register(*ids: str) -> None:
        """What kubelet writes; the agent looks at all owners anew when it changes."""
        registered = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": ids}}}
        path.write_text(json.dumps(registered))

    def wait_whose(owner: str) -> None:
        def is_said() -> bool:
            left_out = aliquot.status(node)["leftOut"]
            return [each["cause"] for each in left_out] == ["owned"] and owner in left_out[0]["message"]

        bed.wait_for(is_said, what=f"the GPU to be left out as {owner}'s", timeout_s=20)
        bed.wait_for(lambda: not aliquot.devices(node), what="the GPU to be taken off", timeout_s=20)
        assert f'cause="owned",gpu_uuid="{uuid}"' in aliquot.metrics(node)
        bed.wait_for(lambda: owner in node_events(bed, node), what="an event that says why")

    register(uuid)
    try:
        wait_whose("nvidia.com/gpu")
        assert len(aliquot.slices()) == 1  # the pool is known, and empty
        bed.api.create(foreign_slice(node, uuid))
        bed.api.patch("nodes", node, {"metadata": {"annotations": {OF_HAMI: json.dumps([{"id": uuid}])}}})
        register()
        wait_whose(OTHER_DRIVER)
        bed.delete("resourceslices", "foreign")
        path.unlink()
        wait_whose("HAMi")
    finally:
        bed.api.patch("nodes", node, {"metadata": {"annotations": {OF_HAMI: None}}})
        bed.delete("resourceslices", "foreign")
        if before is not None:
            path.write_bytes(before)
        else:
            register()
    bed.wait_for(lambda: aliquot.devices(node), what="the GPU to be back", timeout_s=20)
    if before is None:
        path.unlink()


def foreign_slice(node: str, gpu_uuid: str, *, driver: str = OTHER_DRIVER) -> Object:
    """What another driver publishes of a GPU."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "foreign"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": gpu_uuid}}}],
        },
    }


def test_an_agent_writes_slices_of_its_own_driver_and_node_only(
    aliquot: Installation, node: str, bed: Cluster
) -> None:
    def answer(slice_: Object, *, token_of: str) -> str:
        """What the server says to the account of the agent, with a token of a pod on this node."""
        headers = {
            "Content-Type": "application/json",
            "Impersonate-User": f"system:serviceaccount:{AGENT_USER}",
        }
        if token_of:
            headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = token_of
        path = f"{bed.api.kind('resourceslices').path('')}?dryRun=All"
        try:
            bed.api.raw(path, method="POST", body=json.dumps(slice_).encode(), headers=headers)
        except ApiError as error:
            return str(error)
        return "accepted"

    own = foreign_slice(node, "GPU-x", driver=names.DRIVER)
    assert answer(own, token_of=node) == "accepted"
    assert f"the agent of node 'other' may not write slices of node '{node}'" in answer(own, token_of="other")
    assert "token names no node" in answer(own, token_of="")
    assert "slices of driver gpu.aliquot.dev only" in answer(foreign_slice(node, "GPU-x"), token_of=node)


def test_the_slice_comes_back_whoever_deletes_or_changes_it(
    aliquot: Installation, node: str, bed: Cluster
) -> None:
    [before] = aliquot.slices()
    bed.delete("resourceslices", before["metadata"]["name"])
    bed.wait_for(lambda: aliquot.devices(node), what="a slice that was deleted", timeout_s=20)
    [slice_] = aliquot.slices()
    changed: Object = {"spec": {"devices": []}}
    bed.api.patch("resourceslices", slice_["metadata"]["name"], changed)
    bed.wait_for(lambda: aliquot.devices(node), what="a slice that was emptied", timeout_s=20)
    assert len(aliquot.slices()) == 1


def test_a_node_made_anew_owns_its_slice(aliquot: Installation, node: str, bed: Cluster) -> None:
    labels = bed.get("nodes", node)["metadata"].get("labels", {})
    bed.delete_node(node)
    bed.rejoin(node)
    bed.api.patch("nodes", node, {"metadata": {"labels": labels}})
    uid = bed.get("nodes", node)["metadata"]["uid"]

    def owned() -> bool:
        slices = aliquot.slices()
        return len(slices) == 1 and slices[0]["metadata"]["ownerReferences"][0]["uid"] == uid

    bed.wait_for(lambda: owned() and aliquot.devices(node), what="a slice of the new node", timeout_s=90)
    aliquot.wait_ready(timeout_s=90)


def test_while_pods_come_and_go_no_slice_is_written(
    aliquot: Installation, tenant: Tenant, bed: Cluster
) -> None:
    mark, end_s, count = bed.audit.mark(), time.monotonic() + CHURN_S, 0
    while time.monotonic() < end_s:
        name = f"churn-{count}"
        tenant.create(gpu_pod(name, vgpu=1, gpumem=500, command=["sleep", "1000"]))
        bed.wait_for_pod(name, tenant.namespace)
        bed.delete("pods", name, tenant.namespace, grace_s=0, timeout_s=None)
        count += 1
    assert count > 3
    writes = [
        request
        for verb in ("create", "update", "patch", "delete")
        for request in bed.audit.requests(since=mark, user=AGENT_USER, verb=verb, resource="resourceslices")
    ]
    assert writes == []


def test_in_a_rolling_update_no_pod_waits_for_a_driver(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    tenant.create(gpu_pod("before", vgpu=1, gpumem=1000))
    tenant.wait_said("before", "device")
    old = aliquot.pod_of("aliquot-agent", node=node)["metadata"]["uid"]
    bed.kubectl("-n", NAMESPACE, "rollout", "restart", "daemonset/aliquot-agent")

    def is_new() -> bool:
        pods = bed.list("pods", NAMESPACE, labels="app.kubernetes.io/name=aliquot-agent")
        return len(pods) == 1 and pods[0]["metadata"]["uid"] != old

    count = 0
    end_s = time.monotonic() + 120
    while not is_new():
        assert time.monotonic() < end_s, "the agent was not replaced"
        name = f"during-{count}"
        tenant.create(gpu_pod(name, vgpu=1, gpumem=500, command=["sleep", "1000"]))
        bed.wait_for_pod(name, tenant.namespace, timeout_s=20)
        bed.delete("pods", name, tenant.namespace, grace_s=0)
        count += 1
    assert count > 1
    aliquot.wait_ready()
    said = [event["reason"] for event in bed.list("events", tenant.namespace)]
    assert "FailedPrepareDynamicResources" not in said
    assert aliquot.status(node)["leader"]
    registry = bed.node_exec(node, ["/usr/bin/find", names.PLUGIN_REGISTRY_DIR, "-name", f"{names.DRIVER}*"])
    assert len(registry.split()) == 1
    report = bed.wait_for(lambda: tenant.reported("before"), what="the share in the new agent's reports")
    assert report["data"]["limit"] == 1000 * MIB


def test_a_program_can_read_its_share_without_our_library(tenant: Tenant, bed: Cluster) -> None:
    tenant.create(gpu_pod("reader", vgpu=1, gpumem=700))
    tenant.wait_said("reader", "device")
    root = "/var/run/kubernetes.io/dra-device-attributes"
    [path] = bed.exec("reader", ["find", root, "-name", "*.json"], tenant.namespace).split()
    claim = tenant.claim_of("reader")
    entry = bed.get("pods", "reader", tenant.namespace)["spec"]["resourceClaims"][0]["name"]
    assert path == f"{root}/resourceclaimtemplates/{entry}/main/{names.DRIVER}-metadata.json"
    first = json.loads(bed.exec("reader", ["head", "-n1", path], tenant.namespace))
    assert first["metadata"]["uid"] == claim["metadata"]["uid"]
    [told] = first["requests"][0]["devices"]
    assert told["attributes"]["consumedMemoryBytes"] == {"int": 700 * MIB}
    assert told["attributes"]["productName"]["string"].startswith("Simulated")


def test_gpu_access_that_comes_late_costs_no_back_off(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    spec = bed.node_path(node, "/run/cdi/sim.aliquot.dev-gpu.json")
    away = spec.with_suffix(".away")
    spec.rename(away)
    try:
        tenant.create(gpu_pod("early", vgpu=1, gpumem=700))
        agent = aliquot.pod_of("aliquot-agent", node=node)["metadata"]["name"]
        bed.wait_for(
            lambda: "waiting for GPU access" in bed.logs(agent, NAMESPACE, container="agent"),
            what="the agent to wait for it",
        )
    finally:
        away.rename(spec)
    assert tenant.wait_said("early", "device", timeout_s=20)["total_mib"] == 700
    said = [event["reason"] for event in bed.list("events", tenant.namespace)]
    assert "FailedPrepareDynamicResources" not in said


def test_the_status_is_there_while_the_server_is_away(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    tenant.create(gpu_pod("known", vgpu=1, gpumem=700))
    tenant.wait_said("known", "going on")
    agent = aliquot.pod_of("aliquot-agent", node=node)
    table = bed.exec(agent["metadata"]["name"], ["aliquot-agent", "status"], NAMESPACE)
    assert f"node {node}: ready" in table
    assert "700Mi" in table
    address = agent["status"]["podIP"]
    bed.pause("apiserver")
    try:
        page = bed.wait_for(lambda: aliquot.page_at(address, "status"), what="the status without a server")
    finally:
        bed.resume("apiserver")
    [share] = json.loads(page)["shares"]
    assert share["pods"] == ["known/main"]
