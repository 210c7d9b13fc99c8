# SPDX-License-Identifier: Apache-2.0
"""`restore` on updates of converted pods."""

import copy
from typing import Any

import pytest

from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, Refusal, rewrite
from aliquot_webhook.update import restore
from tests.unit.webhook.kit import H100, apply, container, inventory, pod

POLICY = Policy()
KNOWN = inventory([H100] * 2)


def live(given: dict[str, object]) -> Any:
    """The pod as the server stores it: converted, and without empty limits."""
    decision = rewrite(given, POLICY, KNOWN)
    assert isinstance(decision, Patch)
    result: Any = apply(given, decision.operations)
    for each in result["spec"]["containers"]:
        if not each["resources"].get("limits", True):
            del each["resources"]["limits"]
    return result


def merged(old: Any, **limits: str) -> Any:
    """The live pod with limits put back in, and the requests that the server derives from them."""
    result = copy.deepcopy(old)
    resources = result["spec"]["containers"][0]["resources"]
    for section in ("limits", "requests"):
        resources.setdefault(section, {}).update(
            {f"nvidia.com/{key}": value for key, value in limits.items()}
        )
    return result


def test_the_original_request_becomes_the_converted_form() -> None:
    old = live(pod(container(vgpu="1", gpumem="8k")))
    new = merged(old, vgpu="1", gpumem="8000")
    decision = restore(new, old, POLICY)

    assert isinstance(decision, Patch)
    result: Any = apply(new, decision.operations)
    resources = result["spec"]["containers"][0]["resources"]
    assert (resources.pop("limits"), resources.pop("requests")) == ({}, {})
    assert result == old


def test_lists_that_the_update_has_replaced_stand_as_they_stood() -> None:
    given = pod(container(gpumem="8000"), resourceClaims=[{"name": "nic", "resourceClaimName": "n"}])
    given["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]  # type: ignore[index]
    old = live(given)
    new = merged(old, gpumem="8000")
    new["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "n"}]
    new["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    del new["spec"]["containers"][0]["env"]
    decision = restore(new, old, POLICY)

    assert isinstance(decision, Patch)
    result: Any = apply(new, decision.operations)
    assert result["spec"]["resourceClaims"] == old["spec"]["resourceClaims"]
    assert result["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "nic"},
        {"name": "aliquot", "request": "main"},
    ]
    assert result["spec"]["containers"][0]["env"] == old["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        pytest.param({"gpumem": "9000"}, "aliquot.dev/gpu-memory-limit", id="another size"),
        pytest.param({"gpucores": "10"}, "was created without it", id="something new"),
        pytest.param({"gpumem": "lots"}, "cannot change", id="text"),
    ],
)
def test_another_request_is_refused_in_words(limits: dict[str, str], says: str) -> None:
    old = live(pod(container(gpumem="8000")))
    decision = restore(merged(old, **limits), old, POLICY)

    assert isinstance(decision, Refusal)
    assert decision.message.startswith("spec.containers[0].resources.limits[nvidia.com/")
    assert says in decision.message


def test_a_node_name_that_became_a_selector_is_taken_out_again_until_the_pod_is_scheduled() -> None:
    old = live(pod(container(gpumem="8000"), nodeName="n"))
    new = merged(old, gpumem="8000")
    new["spec"]["nodeName"] = "n"
    decision = restore(new, old, POLICY)
    assert isinstance(decision, Patch)
    assert {"op": "remove", "path": "/spec/nodeName"} in decision.operations

    old["spec"]["nodeName"] = "n"
    decision = restore(new, old, POLICY)
    assert isinstance(decision, Patch)
    assert {"op": "remove", "path": "/spec/nodeName"} not in decision.operations


@pytest.mark.parametrize("old", [None, {}, pod(container(gpumem="8000")), pod(container())])
def test_a_pod_that_was_not_converted_is_left_alone(old: object) -> None:
    assert restore(pod(container(gpumem="9000")), old, POLICY) is None
