# SPDX-License-Identifier: Apache-2.0
"""What holds for `rewrite` whatever the pod: random pods, and JSON that only looks like a pod."""

import copy
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot_api import names
from aliquot_webhook import environment, placement, wishes
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.pods import own_claim_name
from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, Refusal, rewrite
from aliquot_webhook.update import restore
from tests.unit.webhook.kit import H100, L4, apply, inventory

POLICIES = st.sampled_from(
    [
        Policy(),
        Policy(count_is_distinct=False, default_memory_mib=100),
        Policy(allow_privileged_whole_gpu=True, default_cores_percent=5, default_count=2, memory_factor=3),
        Policy(allow_without_gpus=False, is_budgeted=True),
    ]
)
HANDLED = sorted(Policy().resources.all())
INVENTORIES = st.sampled_from(
    [
        Inventory(),
        inventory([L4]),
        inventory([L4, L4], [H100] * 8),
        inventory([replace(L4, numa_node=0, shares=4)] * 2, [replace(H100, numa_node=1)] * 4),
    ]
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
EXAMPLES = int(os.environ.get("ALIQUOT_EXAMPLES", "300"))
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
ENV = st.sampled_from(
    [
        {"name": "A", "value": "b"},
        {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
        {"name": environment.VISIBLE_DEVICES, "value": "none"},
        {"name": environment.VISIBLE_DEVICES, "value": "all"},
    ]
)
CONTAINER = _object(
    {
        "name": _odd(st.sampled_from(["a", "b", "c", "A", "x" * 64])),
        "resources": _odd(RESOURCES),
        "image": st.just("i"),
        "securityContext": st.sampled_from([{"privileged": True}, {"privileged": False}, {}]),
        "restartPolicy": st.sampled_from(["Always", "Never"]),
        "env": _odd(st.lists(ENV, max_size=2)),
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
                    "annotations": _odd(
                        _object({names.REQUEST_ANNOTATION: _odd(RECORD), "a": st.just("b")})
                        | st.dictionaries(st.sampled_from(sorted(wishes.KEYS)), _odd(NUMBERS), max_size=3)
                    ),
                    "labels": _odd(_object({names.INJECT_LABEL: st.sampled_from(["enabled", "disabled"])})),
                }
            )
        ),
        "spec": _odd(
            _object(
                {
                    "containers": _odd(st.lists(_odd(CONTAINER), max_size=4)),
                    "initContainers": _odd(st.lists(_odd(CONTAINER), max_size=2)),
                    "resourceClaims": _odd(
                        st.lists(
                            st.sampled_from(
                                [
                                    {"name": "nic", "resourceClaimName": "n"},
                                    {"name": "aliquot", "resourceClaimTemplateName": "aliquot-x"},
                                    {"name": "aliquot", "resourceClaimName": "mine"},
                                    {"name": "aliquot-a", "resourceClaimTemplateName": "aliquot-y"},
                                ]
                            ),
                            max_size=2,
                        )
                    ),
                    "nodeName": st.sampled_from(["", "n"]),
                    "nodeSelector": _odd(st.sampled_from([{"a": "b"}, {placement.HOSTNAME: "n"}])),
                    "resources": _odd(RESOURCES),
                    "schedulerName": _odd(st.sampled_from(["default-scheduler", "other"])),
                }
            )
        ),
    }
)


AMOUNTS = {
    "nvidia.com/vgpu": ["1", "1", "2"],
    "nvidia.com/gpumem": ["100", "8k", "20000"],
    "nvidia.com/gpumem-percentage": ["10", "50", "100"],
    "nvidia.com/gpucores": ["0", "30", "100", "150"],
    "nvidia.com/priority": ["0", "1"],
    "cpu": ["1"],
}
ANNOTATIONS = {
    wishes.USE_TYPE: ["L4", "h100,x", ""],
    wishes.NOUSE_TYPE: ["L4", "v100"],
    wishes.USE_UUID: ["GPU-node-0-0", "gpu-NODE-1-1,x"],
    wishes.NOUSE_UUID: ["GPU-node-0-0", '"]||true'],
    wishes.USE_INDEX: ["0,1"],
    wishes.NUMA_BIND: ["true", "false"],
    wishes.MODE: ["hami-core"],
    wishes.GPU_POLICY: ["mutex", "binpack,x"],
    names.ANNOTATION_MEMORY_LIMIT: ["100Mi", "8Gi", "a=1Gi,b=30Mi"],
    names.ANNOTATION_CORES: ["30", "a=5"],
    names.ANNOTATION_GPU_TYPES: ["h100,*", "b200,l4"],
    names.ANNOTATION_SAME_GPU: ["true", "a,b"],
    names.ANNOTATION_SPREAD_GPUS: ["true", "a,b"],
    names.ANNOTATION_NUMA_ALIGN: ["true"],
    names.ANNOTATION_SHARING: ["shim", "exclusive"],
}


@st.composite
def plausible_pods(draw: st.DrawFn) -> dict[str, Any]:
    """Pods that people could mean, most of which are converted."""
    random = Random(draw(st.integers(0, 2**32)))  # evenly, where hypothesis prefers extremes
    has_nic = random.random() < 0.3

    def some(choices: dict[str, list[str]], at_most: int) -> dict[str, str]:
        keys = random.sample(sorted(choices), random.randint(0, at_most))
        return {key: random.choice(choices[key]) for key in keys}

    def container(name: str) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "image": "i", "resources": {"limits": some(AMOUNTS, 3)}}
        if random.random() < 0.2:
            made["resources"]["requests"] = some(AMOUNTS, 2)
        if has_nic and random.random() < 0.5:
            made["resources"]["claims"] = [{"name": "nic"}]
        if random.random() < 0.2:
            made["env"] = [{"name": "A", "value": "b"}]
        if random.random() < 0.05:
            made["securityContext"] = {"privileged": True}
        return made

    spec: dict[str, Any] = {"containers": [container(name) for name in "abc"[: random.randint(1, 3)]]}
    if random.random() < 0.4:
        spec["initContainers"] = [container(name) for name in "xy"[: random.randint(1, 2)]]
        if random.random() < 0.5:
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if has_nic:
        spec["resourceClaims"] = [{"name": "nic", "resourceClaimName": "n"}]
    if random.random() < 0.2:
        spec |= {"nodeName": "n"} if random.random() < 0.5 else {"nodeSelector": {"a": "b"}}
    metadata: dict[str, Any] = {"name": "p"}
    if random.random() < 0.6:
        metadata["annotations"] = some(ANNOTATIONS, 2)
    return {"metadata": metadata, "spec": spec}


PODS = plausible_pods() | plausible_pods() | plausible_pods() | POD


def _containers(pod: Any) -> list[Any]:
    found = []
    for section in ("containers", "initContainers"):
        listed = pod["spec"].get(section)
        found += [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return found


def _without(holder: Any, key: str, is_ours: Callable[[Any], bool]) -> None:
    """Take our entries out of a list; one that is absent or senseless is replaced by a list."""
    if isinstance(holder, dict):
        listed = holder.get(key)
        holder[key] = [each for each in listed if not is_ours(each)] if isinstance(listed, list) else []


def _is_named(*wanted: str) -> Callable[[Any], bool]:
    return lambda each: isinstance(each, dict) and each.get("name") in wanted


def _stripped(pod: Any) -> Any:
    """`pod` without everything that `rewrite` owns."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod.get("metadata"), pod["spec"]
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        metadata["annotations"].pop(names.REQUEST_ANNOTATION, None)
    elif isinstance(metadata, dict):
        metadata["annotations"] = {}
    else:
        pod["metadata"] = {"annotations": {}}
    ours = _is_named(names.POD_CLAIM_NAME, *map(own_claim_name, "abcxy"))
    _without(spec, "resourceClaims", ours)
    for container in _containers(pod):
        resources = container.get("resources")
        _without(resources, "claims", ours)
        _without(container, "env", _is_named(environment.VISIBLE_DEVICES))
        if isinstance(resources, dict):
            for section in ("limits", "requests"):
                if isinstance(resources.get(section), dict):
                    for name in HANDLED:
                        resources[section].pop(name, None)
    spec.pop("nodeName", None)
    if not isinstance(spec.get("nodeSelector"), dict):
        spec["nodeSelector"] = {}
    spec["nodeSelector"].pop(placement.HOSTNAME, None)
    return pod


def _leftovers(pod: Any) -> list[str]:
    return [
        name
        for container in _containers(pod)
        if isinstance(container.get("resources"), dict)
        for section in ("limits", "requests")
        if isinstance(container["resources"].get(section), dict)
        for name in container["resources"][section]
        if name in HANDLED
    ]


def _check_references(pod: Any) -> None:
    """Every container's entry names a claim of the pod, and a container has a claim once."""
    claims = [each.get("name") for each in pod["spec"]["resourceClaims"] if isinstance(each, dict)]
    for container in _containers(pod):
        listed = container.get("resources", {}).get("claims", []) if container.get("resources") else []
        ours = [each for each in listed if isinstance(each, dict) and "aliquot" in str(each.get("name"))]
        assert {each["name"] for each in ours} <= set(claims)


@given(pod=JSON | PODS, known=INVENTORIES, policy=POLICIES)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_json_gets_an_answer_and_stays_what_it_was(pod: Any, known: Inventory, policy: Policy) -> None:
    before = copy.deepcopy(pod)
    decision = rewrite(pod, policy, known)

    assert decision is None or isinstance(decision, Refusal | Patch)
    assert repr(pod) == repr(before)
    assert repr(rewrite(pod, policy, known)) == repr(decision)


@given(pod=PODS, known=INVENTORIES, policy=POLICIES)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_patch_applies_once_takes_every_key_and_touches_nothing_else(
    pod: Any, known: Inventory, policy: Policy
) -> None:
    decision = rewrite(pod, policy, known)
    if not isinstance(decision, Patch):
        return
    result: Any = apply(pod, decision.operations)

    assert _leftovers(result) == []
    assert repr(_stripped(result)) == repr(_stripped(pod))
    for template in decision.templates:  # the name is a hash of exactly what the template says
        written = json.dumps(template.spec, separators=(",", ":")) + "judged" * template.is_judged
        assert template.name.endswith(f"-{hashlib.sha256(written.encode()).hexdigest()[:16]}")
    again = rewrite(result, policy, known)
    if not decision.templates:
        assert again is None or (isinstance(again, Patch) and again.operations == ())
    else:
        _check_references(result)
        assert isinstance(again, Patch), again
        assert again.operations == ()
        assert again.templates == decision.templates


@given(pod=plausible_pods(), other=JSON | PODS, known=INVENTORIES, policy=POLICIES)
@settings(max_examples=EXAMPLES, deadline=None)
def test_an_update_with_the_original_request_gets_the_converted_form_back(
    pod: Any, other: Any, known: Inventory, policy: Policy
) -> None:
    assert not isinstance(restore(pod, other, policy), Patch) or restore(other, other, policy) is not None
    decision = rewrite(pod, policy, known)
    if not isinstance(decision, Patch) or not decision.templates:
        return
    live: Any = apply(pod, decision.operations)
    merged = copy.deepcopy(live)  # what kubectl apply sends: the live pod, with the original's resources
    for now, then in zip(_containers(merged), _containers(pod), strict=True):
        resources = then.get("resources")
        for section in ("limits", "requests"):
            if isinstance(resources, dict) and isinstance(resources.get(section), dict):
                now["resources"][section] = copy.deepcopy(resources[section])
    restored = restore(merged, live, policy)

    if isinstance(restored, Patch):
        assert repr(apply(merged, restored.operations)) == repr(live)
    else:
        assert restored is None or "cannot change" in restored.message
        assert restored is not None or repr(merged) == repr(live)
