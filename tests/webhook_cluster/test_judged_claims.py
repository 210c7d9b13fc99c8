# SPDX-License-Identifier: Apache-2.0
"""Claims that kube-controller-manager makes for admitted pods are not judged again; nobody gets another claim
past us in that way."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import ApiError, Cluster, TestbedError
from tests.webhook_cluster.conftest import L4_MIB
from tests.webhook_cluster.installation import Installation, container, pod, refusal
from tests.webhook_cluster.test_admission import wait_allocated
from tests.webhook_cluster.test_budgets import budgeted, is_refused, set_budget, wait_used
from tests.webhook_cluster.test_claims import ask, claim, pod_with, template

__all__ = ["budgeted"]  # a fixture

MARK = "aliquot.dev/judged-with-pod"
MADE_FOR = "resource.kubernetes.io/pod-claim-name"
Templates = Callable[[], list[str]]


def judged(installation: Installation) -> float:
    """Reviews so far of what is not mutated, claims among them."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in installation.page("webhook", "/metrics").splitlines()
        if line.startswith('aliquot_webhook_reviews_total{kind="validate"')
    )


def wait_claims(cluster: Cluster, namespace: str, number: int) -> list[dict[str, Any]]:
    return cluster.wait_for(
        lambda: found if len(found := list(cluster.list("resourceclaims", namespace))) == number else None,
        what=f"{number} claims",
    )


@contextmanager
def controller_manager_away(cluster: Cluster) -> Iterator[None]:
    cluster.stop("controller-manager")
    try:
        yield
    finally:
        cluster.start("controller-manager")


def test_they_do_not_come_to_us(cluster: Cluster, installation: Installation, namespace: str) -> None:
    before = judged(installation)
    cluster.api.create(pod("p", namespace, container("a", gpumem=1000), container("b", vgpu=1)))
    (made,) = wait_claims(cluster, namespace, 1)
    wait_allocated(cluster, namespace, "p")
    assert judged(installation) == before
    assert MARK in made["metadata"]["annotations"]

    # Nor does one that is made anew.
    cluster.api.create(pod("waits", namespace, container(gpumem=1000), schedulerName="nobody"))
    wait_claims(cluster, namespace, 2)
    (first,) = [
        each["metadata"]
        for each in cluster.list("resourceclaims", namespace)
        if each["metadata"]["name"] != made["metadata"]["name"]
    ]
    with controller_manager_away(cluster):  # it looks at every pod when it comes back
        cluster.delete("resourceclaims", first["name"], namespace)
    again = wait_claims(cluster, namespace, 2)
    assert first["uid"] not in [each["metadata"]["uid"] for each in again]
    assert judged(installation) == before


def test_an_admitted_pod_gets_its_claim_whatever_becomes_of_us_and_of_its_namespace(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    with controller_manager_away(cluster):
        cluster.api.create(pod("p", namespace, container(gpumem=1000)))
        unlabel = {"metadata": {"labels": {"aliquot.dev/inject": None}}}
        cluster.api.patch("namespaces", namespace, unlabel)
        installation.stop("webhook")
    try:
        wait_claims(cluster, namespace, 1)
    finally:
        installation.start("webhook")
        installation.wait_ready()
    wait_allocated(cluster, namespace, "p")


def test_nobody_else_writes_such_a_template(cluster: Cluster, namespace: str, templates: Templates) -> None:
    cluster.api.create(pod("p", namespace, container(gpumem=1000)))
    (ours,) = templates()
    copy = cluster.get("resourceclaimtemplates", ours, namespace)
    copy["metadata"] = {"name": "mine", "namespace": namespace}
    assert f"spec.metadata.annotations[{MARK}] is for Aliquot's own templates" in refusal(cluster, copy)
    honest = template("honest", namespace, {"exactly": ask(memory="1Gi")})
    for metadata in ({"name": "aliquot-mine"}, {"generateName": "aliquot-"}):
        given = {**honest, "metadata": {**metadata, "namespace": namespace}}
        assert "names begin with aliquot- are Aliquot's own" in refusal(cluster, given)

    cluster.api.create(honest)
    for name, marks in (("honest", {MARK: "true"}), (ours, {MARK: None})):
        marked = {"spec": {"metadata": {"annotations": marks}}}
        with pytest.raises(ApiError, match="field is immutable"):
            cluster.api.patch("resourceclaimtemplates", name, marked, namespace)
    # Its own metadata is nobody's business: migrations of the storage write it, too.
    cluster.api.patch("resourceclaimtemplates", ours, {"metadata": {"labels": {"a": "b"}}}, namespace)


def made_claim(namespace: str) -> dict[str, Any]:
    """As kube-controller-manager makes it for a pod that we have judged."""
    given = claim("made", namespace, {"exactly": ask(memory="80Gi")})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    given["metadata"] |= {"annotations": {MARK: "true", MADE_FOR: "aliquot"}, "ownerReferences": [owner]}
    return given


def without(*keys: str, **values: object) -> Callable[[dict[str, Any]], None]:
    """A change of the metadata of a claim."""

    def change(given: dict[str, Any]) -> None:
        found = given["metadata"]
        for key in keys[:-1]:
            found = found[key]
        found.pop(keys[-1])
        found.update(values)

    return change


def lost_capacity(given: dict[str, Any]) -> None:
    del given["spec"]["devices"]["requests"][0]["exactly"]["capacity"]


def owned_by(**changed: object) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        given["metadata"]["ownerReferences"][0] |= changed

    return change


MAKER = "system:kube-controller-manager"
FAR_TOO_LARGE = f"the largest, NVIDIA L4, has {L4_MIB}Mi"


@pytest.mark.parametrize(
    ("user", "change"),
    [
        pytest.param("", lambda given: None, id="another user"),
        pytest.param(MAKER, without("annotations", MARK), id="no mark"),
        pytest.param(MAKER, without("annotations", MADE_FOR), id="no name in the pod"),
        pytest.param(MAKER, without("annotations"), id="no annotations"),
        pytest.param(MAKER, without("ownerReferences"), id="no owner"),
        pytest.param(MAKER, owned_by(kind="PodGroup"), id="of no pod"),
        pytest.param(MAKER, owned_by(controller=False), id="of another controller"),
        pytest.param(
            MAKER, without("annotations", MADE_FOR, **{MADE_FOR: "aliquots"}), id="another name in the pod"
        ),
    ],
)
def test_all_signs_together_count_and_none_alone(
    cluster: Cluster, namespace: str, user: str, change: Callable[[dict[str, Any]], None]
) -> None:
    """Whatever comes to us is refused here, for its size."""
    given = made_claim(namespace)
    for maker in (MAKER, "system:serviceaccount:kube-system:resource-claim-controller"):
        assert (
            create_as(cluster, maker, given) == "resourceclaim.resource.k8s.io/made created (server dry run)"
        )
    change(given)
    with pytest.raises(TestbedError, match=FAR_TOO_LARGE):
        create_as(cluster, user, given)


def test_a_claim_that_has_lost_its_capacity_is_judged(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    given = made_claim(namespace)
    lost_capacity(given)
    before = judged(installation)
    create_as(cluster, MAKER, given)
    assert judged(installation) == before + 1


def create_as(cluster: Cluster, user: str, given: dict[str, Any]) -> str:
    """On a dry run, which webhooks are asked about like any other."""
    acting = [f"--as={user}", "--as-group=system:masters"] if user else []
    command = ["create", "--dry-run=server", "-f", "-", *acting]
    return cluster.kubectl(*command, stdin=json.dumps(given)).strip()


def test_a_claim_from_a_users_template_is_judged(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    cluster.api.create(template("mine", namespace, {"exactly": ask(memory="1Gi")}))
    before = judged(installation)
    cluster.api.create(pod_with("q", namespace, {"name": "gpu", "resourceClaimTemplateName": "mine"}))
    wait_claims(cluster, namespace, 1)
    assert judged(installation) == before + 2  # the pod and its claim


OPTED_OUT = [{"aliquot.dev/inject": "disabled"}, {"hami.io/webhook": "ignore"}]


@pytest.mark.parametrize("name", ["gpu", "aliquot", "aliquot-main"])
@pytest.mark.parametrize("labels", [{}, *OPTED_OUT], ids=str)
def test_a_pod_cannot_take_one_of_our_templates(
    cluster: Cluster, namespace: str, templates: Templates, labels: dict[str, str], name: str
) -> None:
    cluster.api.create(pod("p", namespace, container(gpumem=1000)))
    (ours,) = templates()
    taken = pod_with("q", namespace, {"name": name, "resourceClaimTemplateName": ours})
    taken["metadata"]["labels"] = labels
    said = refusal(cluster, taken)
    assert "names begin with aliquot- are Aliquot's own" in said
    assert ("aliquot-own-claims" if labels else "pods.aliquot.dev") in said


@pytest.mark.parametrize(
    "labels", [{}, {"aliquot.dev/inject": "enabled", "hami.io/webhook": "ignore"}], ids=["out", "HAMi's"]
)
def test_nor_where_pods_never_come_to_us(
    cluster: Cluster, namespace: str, templates: Templates, labels: dict[str, str]
) -> None:
    """Opted out again, with our templates still there; a Deployment's controller is told the same."""
    cluster.api.create(pod("p", namespace, container(gpumem=1000)))
    (ours,) = templates()
    replaced = {"aliquot.dev/inject": None, "hami.io/webhook": None} | labels
    cluster.api.patch("namespaces", namespace, {"metadata": {"labels": replaced}})
    taken = pod_with("q", namespace, {"name": "gpu", "resourceClaimTemplateName": ours})
    cluster.wait_for(
        lambda: is_refused(cluster, taken, "aliquot-own-claims") or None, what="the labels to be known"
    )
    metadata = {"name": "d", "namespace": namespace}
    selected = {"app": "d"}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": selected},
            "template": {"metadata": {"labels": selected}, "spec": taken["spec"]},
        },
    }
    cluster.api.create(workload)
    cluster.wait_for(
        lambda: (
            [each for each in cluster.list("events", namespace) if "aliquot-own-claims" in each["message"]]
            or None
        ),
        what="an event of the ReplicaSet",
    )
    assert [each["metadata"]["name"] for each in cluster.list("pods", namespace)] == ["p"]


def test_our_names_for_claims_are_for_our_templates(cluster: Cluster, plain_namespace: str) -> None:
    """A marked template that was written before Aliquot was installed is of no use."""
    cluster.api.create(template("mine", plain_namespace, {"exactly": ask(memory="1Gi")}))
    for name in ("aliquot", "aliquot-main"):
        entry = {"name": name, "resourceClaimTemplateName": "mine"}
        assert "belong to claims that Aliquot adds" in refusal(cluster, pod_with("p", plain_namespace, entry))


def test_in_a_budget_every_claim_is_judged_also_one_that_is_made_anew(
    cluster: Cluster, installation: Installation, budgeted: str
) -> None:
    before = judged(installation)
    cluster.api.create(pod("a", budgeted, container(gpumem=6000), schedulerName="nobody"))
    (made,) = wait_claims(cluster, budgeted, 1)
    assert MARK not in made["metadata"]["annotations"]
    assert judged(installation) == before + 1
    wait_used(cluster, budgeted, "6000Mi")

    with controller_manager_away(cluster):
        cluster.delete("resourceclaims", made["metadata"]["name"], budgeted)
        wait_used(cluster, budgeted, "0Mi")
        cluster.api.create(pod("b", budgeted, container(gpumem=6000), schedulerName="nobody"))
    cluster.wait_for(
        lambda: (
            [each for each in cluster.list("events", budgeted) if "6000Mi would exceed" in each["message"]]
            or None
        ),
        what="the word that there is no room for both",
    )
    assert len(cluster.list("resourceclaims", budgeted)) == 1
    wait_used(cluster, budgeted, "6000Mi")


def test_a_copy_from_before_the_budget_is_charged(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    """It names the template of claims that are not judged; and a pod that is there keeps its claim."""
    cluster.api.create(pod("old", namespace, container(gpumem=6000), schedulerName="nobody"))
    copy = cluster.get("pods", "old", namespace)
    copy["metadata"] = {
        "name": "copy",
        "namespace": namespace,
        "annotations": copy["metadata"]["annotations"],
    }
    wait_claims(cluster, namespace, 1)
    set_budget(cluster, namespace, memory="7000Mi")
    wait_used(cluster, namespace, "6000Mi")
    assert "6000Mi would exceed the namespace's budget" in refusal(cluster, copy)
    much = pod("much", namespace, container(gpumem=20000))
    set_budget(cluster, namespace, memory="12000Mi")
    cluster.wait_for(lambda: is_refused(cluster, much, "budget of 12000Mi") or None, what="the new budget")
    cluster.api.create(copy)
    for made in wait_claims(cluster, namespace, 2):
        marked = MARK in made["metadata"]["annotations"]
        assert marked == (made["metadata"]["ownerReferences"][0]["name"] == "old")
    wait_used(cluster, namespace, "12000Mi")
