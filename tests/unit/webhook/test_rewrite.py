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


def converted(given: object, *, policy: Policy = POLICY, known: Inventory = CLUSTER) -> tuple[Any, Patch]:
    decision = rewrite(given, policy, known)
    assert isinstance(decision, Patch), decision
    return apply(given, decision.operations), decision


def template_of(given: object, *, policy: Policy = POLICY, known: Inventory = CLUSTER) -> ClaimTemplate:
    template = converted(given, policy=policy, known=known)[1].template
    assert template is not None
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

    assert patch.template is not None
    assert patch.template.name.startswith("aliquot-1x8000mi-")
    assert patch.template.spec == {
        "devices": {
            "requests": [
                {
                    "name": "main",
                    "exactly": {
                        "deviceClassName": "gpu.aliquot.dev",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "capacity": {"requests": {"memory": "8000Mi", "cores": "0"}},
                    },
                }
            ]
        }
    }
    assert result["spec"]["resourceClaims"] == [
        {"name": "aliquot", "resourceClaimTemplateName": patch.template.name}
    ]
    resources = result["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {}, "claims": [{"name": "aliquot", "request": "main"}]}
    assert json.loads(result["metadata"]["annotations"][names.REQUEST_ANNOTATION]) == {
        "main": {"nvidia.com/gpumem": "8000", "nvidia.com/vgpu": "1"}
    }
    assert patch.warnings == ()


@pytest.mark.parametrize(
    ("limits", "count", "capacity"),
    [
        pytest.param({"vgpu": "1"}, 1, {"cores": "100"}, id="count alone is the whole card"),
        pytest.param({"vgpu": "2"}, 2, {"cores": "100"}, id="two whole cards"),
        pytest.param({"gpumem": "8000"}, 1, {"memory": "8000Mi", "cores": "0"}, id="memory adds the count"),
        pytest.param({"gpucores": "30"}, 1, {"cores": "30"}, id="cores alone take all memory"),
        pytest.param({"vgpu": "1", "gpucores": "0"}, 1, {"cores": "0"}, id="no cores are a valid wish"),
        pytest.param(
            {"vgpu": "2", "gpumem": "8k", "gpucores": "30"},
            2,
            {"memory": "8000Mi", "cores": "30"},
            id="quantities as the API server writes them",
        ),
        pytest.param(
            {"gpumem": "4096", "gpucores": "100"},
            1,
            {"memory": "4096Mi", "cores": "100", "shares": "16"},
            id="all cores and some memory take every share",
        ),
        pytest.param({"gpumem": "8Ki"}, 1, {"memory": "8192Mi", "cores": "0"}, id="binary suffix"),
    ],
)
def test_what_a_request_means(limits: dict[str, str], count: int, capacity: dict[str, str]) -> None:
    request = exact(pod(container(**limits)))

    assert request["count"] == count
    assert request["capacity"]["requests"] == capacity


def test_only_whole_cards_are_configured_exclusive() -> None:
    template = template_of(
        pod(container("whole", vgpu="1"), container("share", gpumem="100", gpucores="100"))
    )

    (config,) = template.spec["devices"]["config"]
    assert config["requests"] == ["whole"]
    assert config["opaque"]["driver"] == "gpu.aliquot.dev"
    assert config["opaque"]["parameters"]["sharing"] == "exclusive"
    assert "config" not in template_of(pod(container(gpumem="100"))).spec["devices"]


def test_an_exclusive_share_takes_only_cards_whose_shares_it_can_take() -> None:
    odd = inventory([type(L4)(memory_bytes=L4.memory_bytes, shares=4, product="NVIDIA L4")] * 3, [L4])
    request = exact(pod(container(gpumem="8000", gpucores="100")), known=odd)

    assert request["capacity"]["requests"]["shares"] == "4"
    (selector,) = request["selectors"]
    assert selector["cel"]["expression"] == (
        'device.capacity["gpu.aliquot.dev"].shares.compareTo(quantity("4")) == 0'
    )


def test_a_limit_goes_before_a_request_and_a_difference_is_said() -> None:
    main = container(gpumem="8000")
    main["resources"]["requests"] = {"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "10", "cpu": "1"}  # type: ignore[index]
    result, patch = converted(pod(main))

    assert exact(pod(main))["capacity"]["requests"] == {"memory": "8000Mi", "cores": "10"}
    assert result["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    assert any("differ" in warning for warning in patch.warnings)


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
    assert result["spec"]["containers"][1] == container("sidecar")
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
    ("limits", "says"),
    [
        pytest.param({"gpumem": "lots"}, ["limits[nvidia.com/gpumem]", "'lots'", "MiB"], id="text"),
        pytest.param({"gpumem": "0"}, ["'0'", "at least 1", "all memory"], id="zero"),
        pytest.param({"gpumem": "-5"}, ["'-5'", "at least 1"], id="negative"),
        pytest.param({"gpumem": "0.5"}, ["'0.5'", "whole number"], id="fraction"),
        pytest.param({"gpumem": "-0.5"}, ["'-0.5'", "whole number"], id="negative fraction"),
        pytest.param({"gpumem": "500m"}, ["whole number"], id="milli"),
        pytest.param({"gpumem": "8Gi"}, ["did you mean 8192?"], id="bytes for MiB"),
        pytest.param({"gpumem": "99999999999999999999999"}, ["whole number"], id="beyond int64"),
        pytest.param({"gpumem": "9" * 500}, ["whole number"], id="absurd"),
        pytest.param({"gpumem": "81560"}, ["NVIDIA H100 80GB HBM3", "81559"], id="larger than any GPU"),
        pytest.param({"vgpu": "0"}, ["limits[nvidia.com/vgpu]", "remove the line"], id="no GPU"),
        pytest.param({"vgpu": "1.5"}, ["whole number of GPUs"], id="GPU and a half"),
        pytest.param({"vgpu": "3"}, ["physical GPUs", "no node has more than 2"], id="more than a node has"),
        pytest.param(
            {"vgpu": "2", "gpumem": "40000"},
            ["more than 1", "40000 MiB"],
            id="more than a node has of it",
        ),
        pytest.param({"gpumem": "100", "gpucores": "101"}, ["from 0 to 100"], id="cores above 100"),
        pytest.param({"gpumem": "100", "gpucores": "-1"}, ["from 0 to 100"], id="negative cores"),
        pytest.param({"vgpu": "1", "gpumem-percentage": "50"}, ["not supported yet"], id="percentage"),
    ],
)
def test_bad_requests_are_refused_in_words_for_their_author(limits: dict[str, str], says: list[str]) -> None:
    message = refused(pod(container(**limits)))

    assert message.startswith("spec.containers[0].resources.limits[nvidia.com/")
    assert [words for words in says if words not in message] == []
    assert len(message) < 500


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(
            pod(container(), initContainers=[container("init", gpumem="5")]),
            "spec.initContainers[0].resources.limits[nvidia.com/gpumem]: invalid value '5': GPUs for init"
            " containers are not supported yet",
            id="init container",
        ),
        pytest.param(
            pod(container(), resources={"limits": {"nvidia.com/vgpu": "1"}}),
            "spec.resources.limits[nvidia.com/vgpu]",
            id="pod-level resources",
        ),
        pytest.param(
            pod(container(gpumem="5"), nodeName="node-1"),
            "spec.nodeName: invalid value",
            id="nodeName",
        ),
        pytest.param(
            pod(container(gpumem="5"), {"name": "x", "securityContext": {"privileged": True}}),
            "spec.containers[1].securityContext.privileged",
            id="privileged neighbour",
        ),
        pytest.param(
            pod({**container(vgpu="1"), "securityContext": {"privileged": True}}),
            "only where the administrator allows it",
            id="privileged with a whole GPU",
        ),
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
    assert template_of(pod(container("a", vgpu="16"), container("b", vgpu="16")), known=large)


def test_several_gpus_are_refused_where_the_server_would_give_one_twice() -> None:
    old = Policy(count_is_distinct=False)

    assert "1.36" in refused(pod(container(vgpu="2")), policy=old)
    assert template_of(pod(container(vgpu="1")), policy=old)


def test_privileged_whole_cards_need_the_administrators_word() -> None:
    lenient = Policy(allow_privileged_whole_gpu=True)
    privileged = {"securityContext": {"privileged": True}}

    assert template_of(pod({**container(vgpu="1"), **privileged}), policy=lenient)
    assert "privileged" in refused(pod({**container(gpumem="1"), **privileged}), policy=lenient)


def test_without_any_known_gpu_a_pod_is_accepted_with_a_warning() -> None:
    _, patch = converted(pod(container(vgpu="8", gpumem="500000")), known=Inventory())

    assert "no GPU in this cluster yet" in patch.warnings[0]


def test_another_scheduler_is_accepted_with_a_warning() -> None:
    _, patch = converted(pod(container(vgpu="1"), schedulerName="volcano"))

    assert "volcano" in patch.warnings[0]


def test_priority_is_taken_out_and_said_to_mean_nothing() -> None:
    alone, patch = converted(pod(container(priority="1")))
    assert patch.template is None
    assert alone["spec"]["containers"][0]["resources"]["limits"] == {}
    assert "nvidia.com/priority has no meaning" in patch.warnings[0]

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
    assert second.template == first.template


def test_a_default_that_a_limit_range_puts_back_is_taken_out_again() -> None:
    result, first = converted(pod(container(gpumem="8000")))
    result["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "4k"
    again, second = converted(result)

    assert second.template == first.template
    assert again["spec"]["containers"][0]["resources"]["limits"] == {}
    assert "is ignored: the pod was converted before" in second.warnings[0]


def test_a_container_injected_between_two_passes_joins_the_claim() -> None:
    result, first = converted(pod(container("a", gpumem="8000")))
    result["spec"]["containers"].append(container("sidecar", gpumem="100"))
    again, second = converted(result)

    assert second.template is not None
    assert second.template != first.template
    assert again["spec"]["resourceClaims"] == [
        {"name": "aliquot", "resourceClaimTemplateName": second.template.name}
    ]
    assert again["spec"]["containers"][1]["resources"]["claims"] == [
        {"name": "aliquot", "request": "sidecar"}
    ]
    assert (
        template_of(pod(container("a", gpumem="8000"), container("sidecar", gpumem="100"))) == second.template
    )


def test_a_restored_copy_gets_its_template_again() -> None:
    result, first = converted(pod(container(gpumem="8000")))
    restored = {**result, "metadata": {"name": "copy", "annotations": result["metadata"]["annotations"]}}

    assert template_of(restored) == first.template


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
