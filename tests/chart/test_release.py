# SPDX-License-Identifier: Apache-2.0
"""The life of a release, in order: validated, installed, upgraded and rolled back under pods, removed."""

import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from aliquot_api import names
from tests.chart import foreign, scraping
from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.cluster.system import TestbedError
from tests.system import nextlayout
from tests.system.images import AGENT_NEXT_ARCHIVE
from tests.system.installation import SIMULATED, Installation
from tests.system.test_docs import run_commands
from tests.system.test_resize import annotate, elastic, limit_of
from tests.system.workloads import MIB, Tenant, asking, gpu_pod
from tests.testkit.chart import NAMESPACE, Values, merged, render
from tests.testkit.prometheus import serving
from tests.testkit.promql import RULES, alerts

PLAIN: Final = gpu_pod("plain", command=("sleep", "1000"))
"""A pod that has nothing to do with us."""
NEXT: Final[Values] = {
    "images": {"agent": {"tag": "next"}},
    "webhook": {"replicas": 1},
    "nodeConfiguration": {"defaults": {"order": "packed"}},
}
"""What the upgrade changes: agent and library to another layout of quota and ledger, a Deployment, the node
configuration."""
OPERATOR: Final = "monitoring.coreos.com/v1"
CERT_MANAGER: Final = "cert-manager.io/v1"


@pytest.fixture(scope="module")
def foreign_kinds(bed: Cluster) -> Iterator[None]:
    """Those of the Prometheus operator and cert-manager."""
    with foreign.served(bed):
        yield


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize(
    ("values", "others"),
    [
        pytest.param({}, {}, id="defaults"),
        pytest.param(SIMULATED, {}, id="simulated"),
        pytest.param(
            {
                "requests": {"resourceCount": "nvidia.com/gpu"},
                "webhook": {
                    "clientCertificates": {"configMap": "ca", "names": ["kube-apiserver"]},
                    "settings": {"extraHosts": ["webhook.example.com"]},
                },
                "controller": {"replicas": 1, "affinity": {"nodeAffinity": {}}},
                "agent": {"nodeSelector": {}, "affinity": {"nodeAffinity": {}}, "tolerations": []},
                "networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
                "install": {"check": False},
                "uninstall": {"cleanUp": False},
                "certManager": {"enabled": True},
            },
            {"Certificate": 1, "Issuer": 1},
            id="narrow",
        ),
        pytest.param(
            {
                "images": {"registry": "", "pullSecrets": ["a"], "agent": {"digest": f"sha256:{'0' * 64}"}},
                "requests": {"resourceCount": "example.com/gpu", "deviceClasses": ["gpu.aliquot.dev", "b"]},
                "webhook": {"failurePolicy": "Ignore", "nodeSelector": {"a": "b"}},
                "controller": {"tolerations": [{"operator": "Exists"}]},
                "agent": {"runtimeClassName": "nvidia", "kubeletDir": "/data/kubelet", "maxSurge": "10%"},
                "nodeConfiguration": {"defaults": {"shares": 3}},
                "certManager": {"enabled": True, "issuerRef": {"name": "i", "kind": "ClusterIssuer"}},
                "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
                "podMonitors": {"enabled": True, "labels": {"release": "p"}},
                "monitoring": {"rules": {"enabled": True}, "dashboards": {"enabled": True}},
                "budgets": {"keep": True},
                "uninstall": {"force": True},
            },
            {"Certificate": 1, "PodMonitor": 3, "PrometheusRule": 1},
            id="everything",
        ),
    ],
)
def test_the_api_server_takes_what_the_chart_makes(
    bed: Cluster, values: Values, others: Mapping[str, int]
) -> None:
    made = render(values, served=(OPERATOR, CERT_MANAGER), hooks=True, namespace="default")
    assert Counter(each["kind"] for each in made if is_foreign(each)) == others
    answered = applied_dry(bed, made).splitlines()
    assert len([line for line in answered if line.endswith("(server dry run)")]) == len(made)


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        ("PodMonitor", ("podMetricsEndpoints", 0, "honourLabels"), True, 'unknown field "spec.podMetricsEnd'),
        ("PodMonitor", ("podMetricsEndpoints", 0, "interval"), "30", "spec.podMetricsEndpoints[0].interval"),
        ("PrometheusRule", ("groups", 0, "rules", 0, "expr"), None, "spec.groups[0].rules[0].expr: Required"),
        ("Certificate", ("issuerRef", "name"), None, "spec.issuerRef.name: Required"),
    ],
    ids=["misspelt", "no duration", "no expression", "no issuer"],
)
def test_the_api_server_would_find_a_mistake_in_an_object_of_a_foreign_kind(
    bed: Cluster, kind: str, field: tuple[str | int, ...], value: object, words: str
) -> None:
    every = {"podMonitors": {"enabled": True}, "monitoring": {"rules": {"enabled": True}}}
    made = render({**every, "certManager": {"enabled": True}}, served=(OPERATOR, CERT_MANAGER))
    wrong = copy.deepcopy(next(each for each in made if each["kind"] == kind))
    place = wrong["spec"]
    for step in field[:-1]:
        place = place[step]
    if value is None:
        del place[field[-1]]
    else:
        place[field[-1]] = value
    with pytest.raises(TestbedError, match=re.escape(words)):
        applied_dry(bed, [wrong | {"metadata": {"name": "wrong"}}])


def test_the_documents_commands_install_it_and_pods_without_gpus_never_notice(
    aliquot: Installation, tenant: Tenant
) -> None:
    aliquot.load_images()
    with asking(tenant, PLAIN) as answers:
        run_commands("docs/install.md", aliquot.bed)
        aliquot.wait_ready()
    assert answers.refused == []
    aliquot.release.upgrade(aliquot.values)  # the settings that a test can wait for
    run_commands("docs/operating.md", aliquot.bed, which=slice(2))
    aliquot.wait_ready(timeout_s=120)


def test_an_upgrade_disturbs_no_running_pod(aliquot: Installation, tenant: Tenant) -> None:
    aliquot.bed.load_image(AGENT_NEXT_ARCHIVE)
    tenant.create(elastic("old", 2000, gpumem=6000))
    tenant.bed.wait_for_pod("old", tenant.namespace)
    before = life(tenant, "old")
    with asking(tenant, PLAIN) as answers:
        aliquot.release.upgrade(merged(aliquot.values, NEXT))
        rolled_out(aliquot, {"webhook": 1, "agent": 1})
    assert answers.refused == []
    assert images_of_agent(aliquot) == {"next"}

    assert life(tenant, "old") == before
    resize(tenant, "old", 5000)
    tenant.create(elastic("new", 1000, gpumem=2000))
    tenant.bed.wait_for_pod("new", tenant.namespace)
    assert life(tenant, "new")["library"] != before["library"]
    wait_limited(tenant, "new", 2000)
    wait_moved_limits(aliquot, [2000, 5000])


def test_a_rollback_disturbs_none_either(aliquot: Installation, tenant: Tenant) -> None:
    before = {pod: life(tenant, pod) for pod in ("old", "new")}
    aliquot.release.rollback()
    rolled_out(aliquot, {"webhook": 2, "agent": 1})
    assert images_of_agent(aliquot) == {"dev"}
    assert {pod: life(tenant, pod) for pod in before} == before
    wait_moved_limits(aliquot, [0, 0])
    resize(tenant, "new", 1900)
    resize(tenant, "old", 6000)


def test_a_prometheus_sees_all_that_alerts_and_dashboards_ask_for(
    aliquot: Installation, tenant: Tenant, tmp_path: Path
) -> None:
    kind = {"apiVersion": f"{names.CONFIG_GROUP}/v1alpha1", "kind": "AliquotBudget"}
    budget = {**kind, "metadata": {"name": "main"}, "spec": {"memory": "64Gi"}}
    tenant.bed.apply([budget], namespace=tenant.namespace)
    try:
        with serving(tmp_path, scrape=list(scraping.jobs(aliquot)), rules=RULES) as prometheus:
            tenant.bed.wait_for(
                lambda: len(prometheus.targets()) >= 5 and set(prometheus.targets().values()) == {"up"},
                what="targets",
            )
            tenant.bed.wait_for(
                lambda: scraping.silent(prometheus) == set(scraping.SILENT), what="series in every panel"
            )
            assert scraping.missing(prometheus) == set()
            assert prometheus.rules() == {rule["alert"]: "ok" for rule in alerts()}
    finally:
        tenant.bed.delete("aliquotbudgets", "main", tenant.namespace)


def test_a_removal_is_refused_while_a_claim_is_in_use(aliquot: Installation, tenant: Tenant) -> None:
    claims = [tenant.claim_of(pod)["metadata"]["name"] for pod in ("old", "new")]
    with pytest.raises(TestbedError, match="claims in use") as refused:
        aliquot.release.uninstall()
    assert all(claim in str(refused.value) for claim in claims)
    aliquot.wait_ready()
    resize(tenant, "old", 5500)


def test_a_forced_removal_ends_no_pod_and_the_next_installation_goes_on_with_them(
    aliquot: Installation, tenant: Tenant
) -> None:
    before = {pod: life(tenant, pod) for pod in ("old", "new")}
    unchecked = merged(aliquot.values, {"install": {"check": False}})
    aliquot.release.rollback(str(aliquot.release.revision()))  # after a refusal nothing else is possible
    aliquot.release.upgrade(merged(unchecked, {"uninstall": {"force": True}}))
    aliquot.release.uninstall()
    assert aliquot.bed.list("pods", NAMESPACE, labels="app.kubernetes.io/name=aliquot-agent") == []
    assert {pod: life(tenant, pod) for pod in before} == before
    aliquot.bed.kubectl("delete", "pod", "new", "--namespace", tenant.namespace, "--wait=false")

    aliquot.release.install(unchecked)
    aliquot.wait_ready(timeout_s=120)
    aliquot.bed.wait_for(
        lambda: [pod["metadata"]["name"] for pod in aliquot.bed.list("pods", tenant.namespace)] == ["old"],
        what="the pod that hung in Terminating to be gone",
        timeout_s=120,
    )
    assert life(tenant, "old") == before["old"]
    resize(tenant, "old", 5200)


def test_a_removal_leaves_nothing_and_blocks_nobody(aliquot: Installation, tenant: Tenant) -> None:
    bed = aliquot.bed
    for pod in bed.list("pods", tenant.namespace):
        tenant.delete(pod["metadata"]["name"])
    bed.wait_for(lambda: not bed.list("resourceclaims", tenant.namespace), what="no claim")
    with asking(tenant, PLAIN) as answers:
        run_commands("docs/operating.md", bed, which=slice(2, None))
    assert answers.refused == []
    assert left_over(bed) == []
    for folder in (names.HOST_STATE_DIR, names.PLUGIN_DIR, names.CDI_DIR, "/run/aliquot-sim"):
        assert bed.node_exec(bed.nodes[0], ["/usr/bin/find", folder, "-mindepth", "1"]) == ""
    assert names.DRIVER not in bed.node_exec(bed.nodes[0], ["/bin/ls", names.PLUGIN_REGISTRY_DIR])


def is_foreign(made: Object) -> bool:
    """Whether an object is of a kind that others define."""
    return made["apiVersion"] in (OPERATOR, CERT_MANAGER)


def applied_dry(bed: Cluster, objects: Sequence[Object]) -> str:
    """What kubectl says of objects that the API server checks strictly and does not keep."""
    apply = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    return bed.kubectl(*apply, stdin=yaml.safe_dump_all(objects))


def images_of_agent(aliquot: Installation) -> set[str]:
    """Tags of the images of all containers in the agent's pod."""
    containers = aliquot.pod_of("aliquot-agent")["spec"]["containers"]
    return {container["image"].rpartition(":")[2] for container in containers}


def life(tenant: Tenant, pod: str) -> Mapping[str, Any]:
    """What would differ if anything had happened to a running pod."""
    live = tenant.pod(pod)
    [container] = live["status"]["containerStatuses"]
    library = tenant.bed.exec(pod, ["sha256sum", names.CONTAINER_LIBRARY], tenant.namespace)
    return {
        "uid": live["metadata"]["uid"],
        "container": container["containerID"],
        "restarts": container["restartCount"],
        "library": library.split()[0],
        "claim": tenant.claim_of(pod)["status"]["allocation"],
    }


def resize(tenant: Tenant, pod: str, mib: int) -> None:
    """A live resize works: asked of the webhook, done and reported by the agent, seen by the program."""
    annotate(tenant, pod, f"{mib}Mi")
    wait_limited(tenant, pod, mib)


def wait_limited(tenant: Tenant, pod: str, mib: int) -> None:
    """Until the claim shows this limit, and the program a GPU of this size: its library has read it."""
    tenant.bed.wait_for(lambda: limit_of(tenant, pod) == mib, what=f"{pod} to have {mib} MiB", timeout_s=60)
    tenant.bed.wait_for(lambda: seen_by(tenant, pod) == mib, what=f"{pod} to see {mib} MiB")


def seen_by(tenant: Tenant, pod: str) -> int:
    """MiB of the GPU as an elastic program saw it last."""
    totals = re.findall(r'"total (\d+)"', tenant.bed.logs(pod, tenant.namespace))
    return int(totals[-1]) if totals else 0


def wait_moved_limits(aliquot: Installation, mib: Sequence[int]) -> None:
    """Until the quotas on the node hold these limits in the word that only the next layout knows."""
    word = f"dd if=$1 bs=8 skip={nextlayout.OFFSET // 8} count=1 2>/dev/null | od -An -tu8"
    show = f"find {names.HOST_RUN_DIR}/claims -name quota -exec sh -c '{word}' _ {{}} ';'"

    def they_are() -> bool:
        words = aliquot.bed.node_exec(aliquot.bed.nodes[0], ["/bin/sh", "-c", show]).split()
        return sorted(int(each) // MIB for each in words) == sorted(mib)

    aliquot.bed.wait_for(they_are, what=f"moved limits of {mib}")


def rolled_out(aliquot: Installation, replicas: Mapping[str, int]) -> None:
    """Until exactly so many pods of each part are there, all of the present revision and ready."""

    def reached() -> bool:
        for part, wanted in replicas.items():
            kind = "daemonsets" if part == "agent" else "deployments"
            name = f"aliquot-{part}"
            workload = aliquot.bed.get(kind, name, NAMESPACE)
            status = workload["status"]
            updated = status.get("updatedNumberScheduled", status.get("updatedReplicas"))
            ready = status.get("numberReady", status.get("readyReplicas"))
            pods = aliquot.bed.list("pods", NAMESPACE, labels=f"app.kubernetes.io/name={name}")
            seen = status["observedGeneration"] == workload["metadata"]["generation"]
            if not (seen and updated == ready == len(pods) == wanted):
                return False
        return True

    aliquot.bed.wait_for(reached, what=f"the roll-out of {', '.join(replicas)}", timeout_s=150)


def left_over(bed: Cluster) -> list[str]:
    """Objects of any kind that have our name."""
    found: list[Object] = []
    for kind in bed.api.kinds():
        if kind.plural not in ("events", "componentstatuses"):
            found += bed.list(f"{kind.plural}.{kind.group}" if kind.group else kind.plural)
    names_found = (f"{each['kind']} {each['metadata']['name']}" for each in found)
    return [name for name in names_found if "aliquot" in name]
