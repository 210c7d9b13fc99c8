# SPDX-License-Identifier: Apache-2.0
"""`rewrite` on the pods that people write."""

import json
from typing import Any

import pytest

from aliquot_api import names
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy, ResourceNames
from aliquot_webhook.rewrite import Patch, Reason, Refusal, rewrite
from tests.unit.webhook.kit import H100, L4, apply, container, inventory, pod

CLUSTER = inventory([L4, L4], [H100])
POLICY = Policy()
SHIM = 'device.attributes["gpu.aliquot.dev"].?sharing.orValue("") == "shim"'
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def converted(given: object, *, policy: Policy = POLICY, known: Inventory = CLUSTER) -> tuple[Any, Patch]:
    decision = rewrite(given, policy, known)
    assert isinstance(decision, Patch), decision
    return apply(given, decision.operations), decision


def template_of(given: object, *, policy: Policy = POLICY, known: Inventory = CLUSTER) -> ClaimTemplate:
    (template,) = converted(given, policy=policy, known=known)[1].templates
    return template


def exact(given: object, request: str = "main", *, known: Inventory = CLUSTER) -> dict[str, Any]:
    requests = template_of(given, known=known).spec["devices"]["requests"]
    return dict(next(each["exactly"] for each in requests if each["name"] == request))


def refused(given: object, *, policy: Policy = POLICY, known: Inventory = CLUSTER) -> str:
    decision = rewrite(given, policy, known)
    assert isinstance(decision, Refusal), decision
    assert decision.reason is Reason.INVALID
    return decision.message


def test_a_share_becomes_a_claim_of_exactly_that_memory() -> None:
    result, patch = converted(pod(container(vgpu="1", gpumem="8000")))

    (template,) = patch.templates
    assert template.name.startswith("aliquot-1x8000mi-")
    assert template.spec == {
        "devices": {
            "requests": [
                {
                    "name": "main",
                    "exactly": {
                        "deviceClassName": "gpu.aliquot.dev",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "capacity": {"requests": {"memory": "8000Mi", "cores": "0"}},
                        "selectors": [{"cel": {"expression": SHIM}}],
                    },
                }
            ]
        }
    }
    assert result["spec"]["resourceClaims"] == [
        {"name": "aliquot", "resourceClaimTemplateName": template.name}
    ]
    main = result["spec"]["containers"][0]
    assert main["resources"] == {"limits": {}, "claims": [{"name": "aliquot", "request": "main"}]}
    assert main["env"] == [VOID]
    assert json.loads(result["metadata"]["annotations"][names.REQUEST_ANNOTATION]) == {
        "main": {"nvidia.com/gpumem": "8000", "nvidia.com/vgpu": "1"}
    }
    assert patch.warnings == ()


def test_only_whole_cards_are_configured_exclusive() -> None:
    template = template_of(
        pod(container("whole", vgpu="1"), container("share", gpumem="100", gpucores="100"))
    )

    (config,) = template.spec["devices"]["config"]
    assert config["requests"] == ["whole"]
    assert config["opaque"]["driver"] == "gpu.aliquot.dev"
    assert config["opaque"]["parameters"]["sharing"] == "exclusive"
    assert "config" not in template_of(pod(container(gpumem="100"))).spec["devices"]


def test_the_same_pods_share_a_template_whatever_their_order_and_names() -> None:
    one = pod(container("a", gpumem="100"), container("b", vgpu="1"))
    other = pod(container("b", vgpu="1"), container("a", gpumem="100"), container("log"))
    other["metadata"] = {"name": "x" * 200 + ".with.dots"}

    assert template_of(one) == template_of(other)
    assert (
        template_of(one).name != template_of(pod(container("a", gpumem="101"), container("b", vgpu="1"))).name
    )


def test_the_largest_request_comes_first() -> None:
    given = pod(
        container("small", gpumem="100"),
        container("whole", vgpu="1"),
        container("large", gpumem="9000"),
        container("pair", gpumem="9000", vgpu="2"),
    )
    order = [request["name"] for request in template_of(given).spec["devices"]["requests"]]

    assert order == ["whole", "pair", "large", "small"]


def test_what_others_wrote_stays() -> None:
    main = container(gpumem="8000")
    main["resources"]["limits"]["cpu"] = "2"  # type: ignore[index]
    main["resources"]["claims"] = [{"name": "nic"}]  # type: ignore[index]
    given = pod(
        main,
        container("sidecar"),
        resourceClaims=[{"name": "nic", "resourceClaimName": "my-nic"}],
        tolerations=[{"key": "nvidia.com/vgpu", "operator": "Exists"}],
    )
    given["metadata"]["annotations"] = {"a": "b"}  # type: ignore[index]
    result, _ = converted(given)

    assert result["spec"]["resourceClaims"][0] == {"name": "nic", "resourceClaimName": "my-nic"}
    assert result["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "nic"},
        {"name": "aliquot", "request": "main"},
    ]
    assert result["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert result["spec"]["containers"][1] == {**container("sidecar"), "env": [VOID]}
    assert result["spec"]["tolerations"] == given["spec"]["tolerations"]  # type: ignore[index]
    assert result["metadata"]["annotations"]["a"] == "b"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(pod(container()), id="no GPU"),
        pytest.param({}, id="empty"),
        pytest.param(None, id="nothing"),
        pytest.param([1], id="a list"),
        pytest.param(
            {**pod(container(vgpu="1")), "metadata": {"labels": {"aliquot.dev/inject": "disabled"}}},
            id="opted out",
        ),
        pytest.param(
            {**pod(container(vgpu="1")), "metadata": {"labels": {"hami.io/webhook": "ignore"}}},
            id="opted out of HAMi",
        ),
        pytest.param(
            {
                **pod(container(vgpu="x"), nodeName="n"),
                "metadata": {"annotations": {"kubernetes.io/config.mirror": "a"}},
            },
            id="mirror of a static pod",
        ),
        pytest.param(
            pod(container(), resourceClaims=[{"name": "aliquot", "resourceClaimName": "mine"}]),
            id="a claim of the user's that has our name",
        ),
    ],
)
def test_pods_that_are_none_of_our_business_are_left_alone(given: object) -> None:
    assert rewrite(given, POLICY, CLUSTER) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(
            pod(container(gpumem="5"), resourceClaims=[{"name": "aliquot", "resourceClaimName": "x"}]),
            "spec.resourceClaims[0].name: invalid value 'aliquot'",
            id="our claim name is taken",
        ),
        pytest.param(pod(container("Main", gpumem="5")), "spec.containers[0].name", id="bad container name"),
        pytest.param(
            pod(container("a", gpumem="5"), container("a")), "must be unique", id="ambiguous container name"
        ),
        pytest.param(
            pod(*(container(f"c{index}", gpumem="5") for index in range(9))),
            "at most 8",
            id="nine",
        ),
    ],
)
def test_pods_that_cannot_be_served_are_refused(given: object, says: str) -> None:
    assert says in refused(given)


def test_too_many_devices_are_refused() -> None:
    large = inventory([L4] * 40)

    assert "33 GPUs" in refused(pod(container("a", vgpu="17"), container("b", vgpu="16")), known=large)
    assert "too long" in refused(pod(container("a", vgpu="16"), container("b", vgpu="16")), known=large)
    assert template_of(pod(container("a", vgpu="16")), known=large)


def test_very_many_containers_are_refused_before_they_are_compared() -> None:
    first = [container(f"i-{each}", gpumem="1000") for each in range(64)]
    main = container("main", gpumem="1000")
    assert "65 containers with GPUs" in refused(pod(main, initContainers=first))
    assert isinstance(rewrite(pod(main, initContainers=first[1:]), POLICY, CLUSTER), Patch)


def test_a_container_gets_no_more_cards_than_its_claim_may_have_requests() -> None:
    """Before 1.36 each card is a request, and a claim with more of them is refused when it is made: the pod
    would wait for ever."""
    old = Policy(count_is_distinct=False)
    assert "at most 8 in one container" in refused(pod(container(vgpu="9")), policy=old, known=Inventory())
    assert isinstance(rewrite(pod(container(vgpu="8")), old, Inventory()), Patch)


def test_priority_without_a_gpu_is_taken_out_and_said_to_mean_nothing() -> None:
    alone, patch = converted(pod(container(priority="1")))
    assert patch.templates == ()
    assert alone["spec"]["containers"][0]["resources"]["limits"] == {}
    assert "nvidia.com/priority means nothing without a GPU" in patch.warnings[0]

    beside, _ = converted(pod(container("a", vgpu="1", priority="1"), container("b", priority="0")))
    assert [each["resources"]["limits"] for each in beside["spec"]["containers"]] == [{}, {}]


def test_resources_can_be_renamed() -> None:
    renamed = Policy(resources=ResourceNames(count="example.com/gpu", memory="example.com/mem"))
    limits = {"example.com/gpu": "1", "example.com/mem": 500}
    main: dict[str, object] = {"name": "main", "resources": {"limits": limits}}

    assert template_of(pod(main), policy=renamed).name.startswith("aliquot-1x500mi-")
    assert rewrite(pod(container(vgpu="1")), renamed, CLUSTER) is None


def test_a_second_pass_changes_nothing() -> None:
    result, first = converted(pod(container("a", gpumem="100"), container("b", vgpu="1", priority="1")))
    second = rewrite(result, POLICY, CLUSTER)

    assert isinstance(second, Patch)
    assert second.operations == ()
    assert second.templates == first.templates


def test_a_default_that_a_limit_range_puts_back_is_taken_out_again() -> None:
    result, first = converted(pod(container(gpumem="8000")))
    result["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "4k"
    again, second = converted(result)

    assert second.templates == first.templates
    assert again["spec"]["containers"][0]["resources"]["limits"] == {}
    assert "is ignored: the pod was converted before" in second.warnings[0]


def test_a_container_injected_between_two_passes_joins_the_claim() -> None:
    result, first = converted(pod(container("a", gpumem="8000")))
    result["spec"]["containers"].append(container("sidecar", gpumem="100"))
    again, second = converted(result)

    (joined,) = second.templates
    assert second.templates != first.templates
    assert again["spec"]["resourceClaims"] == [{"name": "aliquot", "resourceClaimTemplateName": joined.name}]
    assert again["spec"]["containers"][1]["resources"]["claims"] == [
        {"name": "aliquot", "request": "sidecar"}
    ]
    assert template_of(pod(container("a", gpumem="8000"), container("sidecar", gpumem="100"))) == joined


def test_a_restored_copy_gets_its_template_again() -> None:
    result, first = converted(pod(container(gpumem="8000")))
    restored = {**result, "metadata": {"name": "copy", "annotations": result["metadata"]["annotations"]}}

    assert (template_of(restored),) == first.templates


def test_the_record_alone_asks_for_nothing() -> None:
    given = pod(container())
    given["metadata"] = {"annotations": {names.REQUEST_ANNOTATION: '{"main":{"nvidia.com/vgpu":"1"}}'}}

    assert rewrite(given, POLICY, CLUSTER) is None


@pytest.mark.parametrize(
    "record", ["", "{", "[]", '{"main":1}', '{"main":{"nvidia.com/vgpu":1}}', "[" * 9999]
)
def test_a_record_that_is_not_ours_is_refused(record: str) -> None:
    result, _ = converted(pod(container(gpumem="8000")))
    result["metadata"]["annotations"][names.REQUEST_ANNOTATION] = record

    assert "written by Aliquot" in refused(result)


def test_a_recorded_value_is_checked_like_a_stated_one() -> None:
    result, _ = converted(pod(container(gpumem="8000")))
    result["metadata"]["annotations"][names.REQUEST_ANNOTATION] = '{"main":{"nvidia.com/gpumem":"x"}}'

    assert refused(result).startswith(
        "metadata.annotations[aliquot.dev/original-request].main[nvidia.com/gpumem]: invalid value 'x'"
    )


OURS = "templates whose names begin with aliquot- are Aliquot's own"


@pytest.mark.parametrize("record", [None, "{}", '{"main":{"nvidia.com/vgpu":"1"}}'])
@pytest.mark.parametrize("name", ["mine", "aliquot-other"])
def test_a_pod_cannot_take_one_of_our_templates(record: str | None, name: str) -> None:
    borrowed = {"name": name, "resourceClaimTemplateName": "aliquot-mine"}
    given = pod(container(), resourceClaims=[borrowed])
    if record is not None:
        given["metadata"] = {"annotations": {names.REQUEST_ANNOTATION: record}}
    assert OURS in refused(given)
    assert OURS in refused(pod(container(gpumem="8000"), resourceClaims=[borrowed]))

    result, _ = converted(pod(container(gpumem="8000")))
    result["spec"]["resourceClaims"].append({"name": name, "resourceClaimTemplateName": "aliquot-mine"})
    assert OURS in refused(result)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": {"aliquot.dev/inject": "disabled"}},
        {"labels": {"hami.io/webhook": "ignore"}},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [POLICY, Policy(count_is_distinct=False)], ids=["1.36", "1.35"])
def test_nor_under_the_name_of_our_claim(metadata: dict[str, Any], policy: Policy) -> None:
    entry = {"name": "aliquot", "resourceClaimTemplateName": "aliquot-1x8000mi-0123456789abcdef"}
    plain = pod(container(), resourceClaims=[entry])
    asks = pod(container(vgpu="2", gpumem="8000"), resourceClaims=[entry])
    for given in (plain, asks):
        given["metadata"] = metadata
        assert "aliquot" in refused(given, policy=policy)


def test_where_there_is_a_budget_the_template_is_another_one() -> None:
    """Its claims are counted as they are made; a copy from elsewhere gets it, too."""
    given = pod(container(gpumem="8000"))
    budgeted = Policy(is_budgeted=True)
    elsewhere, counted = template_of(given), template_of(given, policy=budgeted)
    assert (elsewhere.is_judged, counted.is_judged) == (True, False)
    assert elsewhere.name != counted.name
    assert elsewhere.spec == counted.spec
    copy, _ = converted(given)
    assert template_of(copy, policy=budgeted) == counted
    moved, _ = converted(copy, policy=budgeted)
    (entry,) = moved["spec"]["resourceClaims"]
    assert entry == {"name": "aliquot", "resourceClaimTemplateName": counted.name}
