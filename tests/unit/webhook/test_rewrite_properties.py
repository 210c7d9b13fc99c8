# SPDX-License-Identifier: Apache-2.0
"""What holds for `rewrite` whatever the pod: random pods, and JSON that only looks like a pod."""

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot_api import names
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, Refusal, rewrite
from tests.unit.webhook.kit import H100, L4, apply, inventory

POLICY = Policy()
HANDLED = POLICY.resources.all()
INVENTORIES = st.sampled_from([Inventory(), inventory([L4]), inventory([L4, L4], [H100] * 8)])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NUMBERS = st.sampled_from(["1", "2", "100", "8000", "8k", "0", "-1", "1.5", "8Gi", "x", "", "+5", "1e2"])
KEYS = st.sampled_from([*HANDLED, "cpu", "memory", "nvidia.com~1vgpu"])


def _odd(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly `strategy`, sometimes anything."""
    return st.one_of(strategy, strategy, strategy, strategy, strategy, JSON)


def _object(required: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=required)


QUANTITIES = st.dictionaries(KEYS, _odd(NUMBERS), max_size=4)
RESOURCES = _object(
    {
        "limits": _odd(QUANTITIES),
        "requests": _odd(QUANTITIES),
        "claims": _odd(
            st.lists(
                st.sampled_from([{"name": "nic"}, {"name": names.POD_CLAIM_NAME, "request": "a"}]), max_size=2
            )
        ),
    }
)
CONTAINER = _object(
    {
        "name": _odd(st.sampled_from(["a", "b", "c", "A", "x" * 64])),
        "resources": _odd(RESOURCES),
        "image": st.just("i"),
        "securityContext": st.sampled_from([{"privileged": True}, {"privileged": False}, {}]),
    }
)
RECORD = st.sampled_from(
    ['{"a":{"nvidia.com/vgpu":"1"}}', '{"b":{"nvidia.com/gpumem":"500","other":"1"}}', "{", "[]", "null"]
)
POD = _object(
    {
        "metadata": _odd(
            _object(
                {
                    "annotations": _odd(_object({names.REQUEST_ANNOTATION: _odd(RECORD), "a": st.just("b")})),
                    "labels": _odd(_object({names.INJECT_LABEL: st.sampled_from(["enabled", "disabled"])})),
                }
            )
        ),
        "spec": _odd(
            _object(
                {
                    "containers": _odd(st.lists(_odd(CONTAINER), max_size=4)),
                    "initContainers": _odd(st.lists(_odd(CONTAINER), max_size=1)),
                    "resourceClaims": _odd(
                        st.lists(
                            st.sampled_from(
                                [
                                    {"name": "nic", "resourceClaimName": "n"},
                                    {"name": "aliquot", "resourceClaimTemplateName": "aliquot-x"},
                                    {"name": "aliquot", "resourceClaimName": "mine"},
                                ]
                            ),
                            max_size=2,
                        )
                    ),
                    "nodeName": st.sampled_from(["", "n"]),
                    "resources": _odd(RESOURCES),
                    "schedulerName": _odd(st.sampled_from(["default-scheduler", "other"])),
                }
            )
        ),
    }
)


def _stripped(pod: Any) -> Any:
    """`pod` without everything that `rewrite` owns."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod.get("metadata"), pod["spec"]
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        metadata["annotations"].pop(names.REQUEST_ANNOTATION, None)
    for holder, key in [(spec, "resourceClaims")] + [
        (container.get("resources"), "claims")
        for container in spec["containers"]
        if isinstance(container, dict)
    ]:
        if isinstance(holder, dict) and isinstance(holder.get(key), list):
            holder[key] = [
                claim
                for claim in holder[key]
                if not (isinstance(claim, dict) and claim.get("name") == names.POD_CLAIM_NAME)
            ]
        if isinstance(holder, dict) and not isinstance(holder.get(key), list):
            holder[key] = []  # absent or senseless, and replaced by a list
    for container in spec["containers"]:
        if isinstance(container, dict) and isinstance(container.get("resources"), dict):
            for section in ("limits", "requests"):
                given = container["resources"].get(section)
                if isinstance(given, dict):
                    for name in HANDLED:
                        given.pop(name, None)
    if not isinstance(metadata, dict):
        pod["metadata"] = {"annotations": {}}
    elif not isinstance(metadata.get("annotations"), dict):
        metadata["annotations"] = {}
    return pod


def _leftovers(pod: Any) -> list[str]:
    return [
        name
        for container in pod["spec"]["containers"]
        if isinstance(container, dict) and isinstance(container.get("resources"), dict)
        for section in ("limits", "requests")
        if isinstance(container["resources"].get(section), dict)
        for name in container["resources"][section]
        if name in HANDLED
    ]


@given(pod=JSON | POD, known=INVENTORIES)
@settings(max_examples=300, deadline=None)
def test_any_json_gets_an_answer_and_stays_what_it_was(pod: Any, known: Inventory) -> None:
    before = copy.deepcopy(pod)
    decision = rewrite(pod, POLICY, known)

    assert decision is None or isinstance(decision, Refusal | Patch)
    assert repr(pod) == repr(before)
    assert repr(rewrite(pod, POLICY, known)) == repr(decision)


@given(pod=POD, known=INVENTORIES)
@settings(max_examples=300, deadline=None)
def test_a_patch_applies_once_takes_every_key_and_touches_nothing_else(pod: Any, known: Inventory) -> None:
    decision = rewrite(pod, POLICY, known)
    if not isinstance(decision, Patch):
        return
    result = apply(pod, decision.operations)

    assert _leftovers(result) == []
    assert repr(_stripped(result)) == repr(_stripped(pod))
    again = rewrite(result, POLICY, known)
    if decision.template is None:
        assert again is None or (isinstance(again, Patch) and again.operations == ())
    else:
        assert isinstance(again, Patch), again
        assert again.operations == ()
        assert again.template == decision.template
