# SPDX-License-Identifier: Apache-2.0
"""What the nodes' GPUs have for a pod that waits, and what is short. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj
from aliquot_cli import nodes
from aliquot_cli.causes import CORDON_TAINT, UNHEALTHY_TAINT, Cause, Facts, Finding, NodeLook
from aliquot_cli.cluster import meta
from aliquot_cli.output import size
from aliquot_cli.placing import Look, Short, Wish, place, wish_of

OUR_CLASSES: Final = (names.DEVICE_CLASS, names.MIG_DEVICE_CLASS)


def is_ours(device_class: str, classes: Mapping[str, Sequence[str]]) -> bool:
    """Whether a DeviceClass means our GPUs."""
    return device_class in OUR_CLASSES or any(names.DRIVER in each for each in classes.get(device_class, ()))


def our_wishes(facts: Facts) -> list[tuple[str, Wish]]:
    """The wishes of claims that are not allocated, of our GPUs only."""
    found = []
    for name, spec in facts.specs.items():
        wish = wish_of(spec)
        ours = tuple(
            request
            for request in wish.requests
            if any(is_ours(way.device_class, facts.classes) for way in request.ways)
        )
        if ours:
            found.append((name, Wish(requests=ours, constraints=wish.constraints)))
    return found


def look_around(facts: Facts) -> list[NodeLook]:
    """Each node that has a GPU, or could not take the pod anyway."""
    wishes = [
        wish for name, wish in our_wishes(facts) if not dig(facts.claims.get(name), "status", "allocation")
    ]
    looks = []
    for node in facts.nodes:
        name = meta(node, "name")
        cards = [card for card in facts.cards if card.node == name]
        if not cards:
            continue
        refusals = [*nodes.refusals(facts.pod, node, facts.others), *_pinned(facts, node)]
        looks.append(
            NodeLook(node=name, refusals=tuple(refusals), placement=place(wishes, cards, facts.classes))
        )
    return looks


def _pinned(facts: Facts, node: JsonObject) -> list[str]:
    """Claims that are allocated elsewhere keep the pod from this node."""
    found = []
    for claim in facts.claims.values():
        terms = items(dig(claim, "status", "allocation", "nodeSelector", "nodeSelectorTerms"))
        if terms and not any(nodes.matches_term(obj(term), node) for term in terms):
            found.append(f"claim {meta(claim, 'name')} is allocated on another node")
    return found


def judge(facts: Facts, looks: Sequence[NodeLook]) -> list[Finding]:
    fitting = [look for look in looks if look.placement.fits]
    free = [look.node for look in fitting if not look.refusals]
    if free:
        what = f"it fits on {', '.join(free)} now, as far as GPUs, cpu, memory and labels of nodes go"
        return [Finding(Cause.FITS, what)]
    if fitting:
        reasons = "; ".join(f"{look.node}: {' and '.join(look.refusals)}" for look in fitting)
        return [
            Finding(
                Cause.NODE,
                f"its GPUs would fit, and the node does not take the pod: {reasons}",
                "change the pod's node selector, affinity, tolerations or requests, or the node",
            )
        ]
    acceptable = [look for look in looks if not look.refusals] or list(looks)
    findings = _per_request([each for look in acceptable for each in look.placement.looks])
    if findings:
        return findings
    unsure = "" if all(look.placement.complete for look in looks) else " (not all ways were tried)"
    return [
        Finding(
            Cause.TOGETHER,
            f"each of its GPU requests would fit alone, and on no node all of them together{unsure}",
            "ask for fewer or smaller GPUs, or relax same-gpu, spread-gpus, numa-align or pcie-align",
        )
    ]


def _per_request(looks: Sequence[Look]) -> list[Finding]:
    """A finding for each thing that stands in the way of a request that fits on no GPU."""
    findings: list[Finding] = []
    for request in dict.fromkeys(look.request for look in looks):
        mine = [look for look in looks if look.request == request]
        if any(look.short is None for look in mine):
            continue
        # A GPU that is not meant says nothing while another one is.
        close = [look for look in mine if look.short is not Short.SELECTOR] or mine
        for short in dict.fromkeys(look.short for look in close):
            if short is not None:
                findings.append(_finding(request, short, [look for look in close if look.short is short]))
    return findings


def _finding(request: str, short: Short, looks: Sequence[Look]) -> Finding:
    words = "; ".join(dict.fromkeys(f"{look.card.node}/{look.card.uuid}: {look.words}" for look in looks[:8]))
    free = max((look.card.free(names.CAPACITY_MEMORY) for look in looks), default=0)
    fixes = {
        Short.MEMORY: f"ask for at most {size(free)}, or wait until a share ends (see aliquot top)",
        Short.CORES: "ask for fewer nvidia.com/gpucores, or wait until a share that reserves some ends",
        Short.SHARES: "wait until a share ends, or raise `shares` in the node configuration",
        Short.WHOLE: "ask for a size (nvidia.com/gpumem), or wait until a GPU is empty",
        Short.SELECTOR: "change the pod's GPU type, UUID or sharing: no GPU of the cluster matches",
        Short.UNKNOWN: "check the claim's selector by hand",
        Short.TAINT: _taint_fix(looks),
    }
    titles = {
        Short.MEMORY: (Cause.MEMORY, "too little GPU memory is free"),
        Short.CORES: (Cause.CORES, "too few cores are free"),
        Short.SHARES: (Cause.SHARES, "no place is left on the GPUs"),
        Short.WHOLE: (Cause.WHOLE, "no GPU is empty"),
        Short.SELECTOR: (Cause.SELECTOR, "no GPU is of the wanted kind"),
        Short.UNKNOWN: (Cause.UNKNOWN, "it cannot be told which GPUs are wanted"),
        Short.TAINT: (Cause.TAINTED, "GPUs are tainted"),
    }
    cause, title = titles[short]
    return Finding(cause, f"container request {request}: {title} ({words})", fixes[short])


def _taint_fix(looks: Sequence[Look]) -> str:
    keys = {taint.key for look in looks for taint in look.card.taints}
    if CORDON_TAINT in keys:
        return f"aliquot uncordon {looks[0].card.uuid}"
    if UNHEALTHY_TAINT in keys:
        return "reset the GPU or reboot the node; its agent takes the taint away when it is well"
    return "remove the taint (kubectl get devicetaintrules), or tolerate it in the claim"
