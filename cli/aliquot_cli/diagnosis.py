# SPDX-License-Identifier: Apache-2.0
"""Why a pod does not run, from what was gathered about it. Pure."""

from collections.abc import Iterator
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli.causes import Cause, Diagnosis, Facts, Finding
from aliquot_cli.cluster import meta
from aliquot_cli.looks import OUR_CLASSES, judge, look_around, our_wishes
from aliquot_cli.placing import wish_of

RESOURCES: Final = frozenset(
    {
        names.RESOURCE_COUNT,
        names.RESOURCE_MEMORY,
        names.RESOURCE_MEMORY_PERCENT,
        names.RESOURCE_CORES,
        names.RESOURCE_PRIORITY,
    }
)


def diagnose(facts: Facts) -> Diagnosis:
    """Why the pod does not run, or that it does."""
    phase = text(dig(facts.pod, "status", "phase"))
    words = scheduler_words(facts.pod)
    if phase in ("Succeeded", "Failed"):
        return Diagnosis((Finding(Cause.ENDED, f"the pod has ended: {phase}"),))
    if dig(facts.pod, "spec", "nodeName") and phase:
        scheduled = _scheduled(facts, phase)
        if scheduled is not None:
            return Diagnosis((scheduled,), scheduler=words)
    early = next((found for found in _before_scheduling(facts) if found), None)
    if early:
        return Diagnosis(tuple(early), scheduler=words)
    looks = look_around(facts)
    return Diagnosis(tuple(judge(facts, looks)), looks=tuple(looks), scheduler=words)


def scheduler_words(pod: JsonObject) -> str:
    """The message of PodScheduled while it is false."""
    for each in items(dig(pod, "status", "conditions")):
        if dig(each, "type") == "PodScheduled" and dig(each, "status") == "False":
            return text(dig(each, "message"))
    return ""


def _scheduled(facts: Facts, phase: str) -> Finding | None:
    """A pod that has a node; None for one that was given its node by hand and has no GPU."""
    node = text(dig(facts.pod, "spec", "nodeName"))
    unallocated = [name for name, claim in facts.claims.items() if not dig(claim, "status", "allocation")]
    if phase == "Pending" and (unallocated or None in facts.specs.values()):
        return Finding(
            Cause.FOREIGN_SCHEDULER,
            f"the pod was put on {node} without the scheduler, so its claim is not allocated",
            "remove spec.nodeName; to choose a node use a nodeSelector on kubernetes.io/hostname",
        )
    if phase != "Pending":
        return Finding(Cause.RUNNING, f"the pod is {phase} on {node}")
    failed = [each for each in facts.events if each.get("reason") == "FailedPrepareDynamicResources"]
    if failed and not _has_started(facts.pod):
        return Finding(
            Cause.PREPARE,
            f"its claim is allocated, and {node} cannot prepare it: {text(failed[-1].get('message'))}",
            _agent_fix(facts, node),
        )
    waiting = [dig(each, "state", "waiting") for each in items(dig(facts.pod, "status", "containerStatuses"))]
    reasons = [" ".join(text(dig(each, key)) for key in ("reason", "message")) for each in waiting if each]
    return Finding(
        Cause.STARTING, f"the pod has its GPU on {node} and is starting: {'; '.join(reasons) or phase}"
    )


def _has_started(pod: JsonObject) -> bool:
    return any(
        dig(each, "state", "running") or dig(each, "lastState", "terminated")
        for each in items(dig(pod, "status", "containerStatuses"))
    )


def _agent_fix(facts: Facts, node: str) -> str:
    if node not in facts.agents:
        return f"no agent runs on {node}: kubectl -n aliquot-system get daemonset aliquot-agent"
    if not facts.agents[node]:
        return f"the agent on {node} is not ready: aliquot doctor tells why"
    return f"look at the log of the agent on {node}"


def _before_scheduling(facts: Facts) -> Iterator[list[Finding]]:
    """What keeps the scheduler from even looking at GPUs; each group makes the later ones pointless."""
    spec = obj(facts.pod.get("spec"))
    yield _some(_gate(facts), _not_converted(facts, spec))
    yield _some(*(_claim(facts, obj(each)) for each in items(spec.get("resourceClaims"))))
    yield _classes(facts)
    yield _some(_no_gpu(facts, spec))
    yield _some(_scheduler(facts.pod))
    yield _some(_no_cards(facts))


def _some(*findings: Finding | None) -> list[Finding]:
    return [each for each in findings if each is not None]


def _gate(facts: Facts) -> Finding | None:
    if not facts.gate_problem:
        return None
    gate = names.CONSUMABLE_CAPACITY_GATE
    fix = f"turn the feature gate {gate} on in kube-apiserver, kube-scheduler and kubelet"
    return Finding(Cause.GATE_OFF, facts.gate_problem, fix)


def _not_converted(facts: Facts, spec: JsonObject) -> Finding | None:
    left = [
        name
        for container in (*items(spec.get("containers")), *items(spec.get("initContainers")))
        for name in obj(dig(container, "resources", "limits"))
        if name in RESOURCES
    ]
    if not left:
        return None
    labels, own = obj(dig(facts.namespace, "metadata", "labels")), obj(dig(facts.pod, "metadata", "labels"))
    namespace = meta(facts.pod, "namespace")
    label = f"{names.INJECT_LABEL}={names.INJECT_ENABLED}"
    fix = f"kubectl label namespace {namespace} {label}, then create the pod again"
    why = f"namespace {namespace} has not opted in"
    if own.get(names.INJECT_LABEL) == names.INJECT_DISABLED or own.get("hami.io/webhook") == "ignore":
        why, fix = "its label opts it out", f"remove the label {names.INJECT_LABEL} from the pod"
    elif labels.get(names.INJECT_LABEL) == names.INJECT_ENABLED:
        why = "it was created before the namespace opted in, or while no webhook was installed"
        fix = "create it again"
    return Finding(
        Cause.NOT_CONVERTED,
        f"it asks for {', '.join(sorted(set(left)))}, which no node has, and was not converted: {why}",
        fix,
    )


def _claim(facts: Facts, entry: JsonObject) -> Finding | None:
    """A claim that does not exist (yet)."""
    name = text(entry.get("name"))
    template, direct = text(entry.get("resourceClaimTemplateName")), text(entry.get("resourceClaimName"))
    if name in facts.claims:
        return None
    if direct:
        what = f"ResourceClaim {direct} does not exist in namespace {meta(facts.pod, 'namespace')}"
        return Finding(Cause.CLAIM_MISSING, what, "create it; the pod waits for it")
    if facts.specs.get(name) is None:
        return Finding(
            Cause.TEMPLATE_MISSING,
            f"ResourceClaimTemplate {template} does not exist in namespace {meta(facts.pod, 'namespace')}",
            "create the pod again: admission makes the template anew"
            if names.REQUEST_ANNOTATION in obj(dig(facts.pod, "metadata", "annotations"))
            else "create the template; the pod waits for it",
        )
    if not dig(facts.pod, "metadata", "uid"):
        return None  # a manifest: its claim is made with the pod
    refused = [each for each in facts.events if each.get("reason") == "FailedResourceClaimCreation"]
    if refused:
        what = f"its claim cannot be made: {text(refused[-1].get('message'))}"
        return Finding(Cause.CLAIM_REFUSED, what, "aliquot budget shows what the namespace may have and has")
    return Finding(Cause.CLAIM_PENDING, "kube-controller-manager has not made its claim yet", "wait a moment")


def _classes(facts: Facts) -> list[Finding]:
    wanted = {
        way.device_class
        for spec in facts.specs.values()
        for request in wish_of(spec).requests
        for way in request.ways
    }
    return [
        Finding(
            Cause.NO_CLASS,
            f"DeviceClass {name} does not exist, so the scheduler cannot look at the claim",
            "install Aliquot's DeviceClasses: the chart has them (docs/install.md)"
            if name in OUR_CLASSES
            else "create it, or name another one in the claim",
        )
        for name in sorted(wanted)
        if name not in facts.classes
    ]


def _no_gpu(facts: Facts, spec: JsonObject) -> Finding | None:
    if our_wishes(facts):
        return None
    only_others = ", only for others' devices" if items(spec.get("resourceClaims")) else ""
    return Finding(Cause.NO_GPU_WANTED, f"the pod asks for no GPU of Aliquot{only_others}")


def _scheduler(pod: JsonObject) -> Finding | None:
    """A pod that names another scheduler, and that nobody has looked at."""
    name = text(dig(pod, "spec", "schedulerName")) or "default-scheduler"
    conditions = items(dig(pod, "status", "conditions"))
    if name == "default-scheduler" or any(dig(each, "type") == "PodScheduled" for each in conditions):
        return None
    return Finding(
        Cause.FOREIGN_SCHEDULER,
        f"the pod is left to the scheduler {name!r}, which has not looked at it",
        "remove spec.schedulerName, or run a kube-scheduler of that name",
    )


def _no_cards(facts: Facts) -> Finding | None:
    if any(card.published for card in facts.cards):
        return None
    ready = [node for node, is_ready in facts.agents.items() if is_ready]
    fix = "aliquot doctor tells what each agent says of its node's GPUs"
    if not ready:
        fix = "no agent is ready: kubectl -n aliquot-system get pods"
    return Finding(Cause.NO_GPUS, "no node publishes a GPU", fix)
