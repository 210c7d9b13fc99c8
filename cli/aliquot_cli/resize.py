# SPDX-License-Identifier: Apache-2.0
"""`aliquot resize`: changes the memory limit of a running pod, and waits for what becomes of it."""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, text
from aliquot_cli import output
from aliquot_cli.cards import Share, cards
from aliquot_cli.cluster import RESOURCES, add_cluster_options, command, connect, namespace_of
from aliquot_cli.share import memory_limit
from aliquot_webhook.kube import MERGE_PATCH, ListApi

NOT_DONE: Final = 3
REFUSALS: Final = frozenset({"NoRoom", "NotAllowed", "Withdrawn", "Conflict", "NotUnderstood", "WholeGPU"})
"""Reasons of the condition Resized that do not end by waiting (docs/resize.md)."""
_PATIENCE_S: Final = 5.0
"""How long a refusal that stood there before is taken for an old one."""
_POLL_S: Final = 0.5


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `resize`."""
    parser = commands.add_parser("resize", help="change the memory limit of a running pod")
    parser.add_argument("pod", metavar="POD")
    add_cluster_options(parser)
    parser.add_argument("--memory", metavar="SIZE", help="new limit on each GPU, such as 7Gi")
    parser.add_argument("-c", "--container", metavar="NAME", help="only of this container")
    parser.add_argument("--reset", action="store_true", help="back to what the claim was given")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the node")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="of waiting (60)")
    parser.set_defaults(run=command(run))


def run(arguments: argparse.Namespace) -> int:
    """`aliquot resize POD`; 3 where the new limit is not in force in time."""
    if (arguments.memory is None) is not arguments.reset:
        raise InvalidInput(
            field="resize", value=arguments.memory, fix="want one of --memory SIZE and --reset"
        )
    api, namespace = connect(arguments), namespace_of(arguments)
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(arguments.pod)}"
    pod = api.call("GET", path)
    shares = shares_of(api, pod)
    if not shares:
        raise InvalidInput(field="POD", value=arguments.pod, fix="it has no GPU; aliquot explain tells why")
    wanted = None if arguments.reset else _whole(memory_limit(arguments.memory))
    now = text(dig(pod, "metadata", "annotations", names.ANNOTATION_MEMORY_LIMIT))
    value = None
    if wanted is not None:
        containers = list(dict.fromkeys(share.request.partition("/")[0] for share in shares))
        limit = quantity.format_mebibytes(wanted)
        value = annotation(now, limit, arguments.container, containers=containers)
    before = _marks(shares, arguments.container)
    change = {"metadata": {"annotations": {names.ANNOTATION_MEMORY_LIMIT: value}}}
    api.call("PATCH", path, body=change, content_type=MERGE_PATCH)
    printer = output.printer("table")
    asked = "what the claim was given" if wanted is None else output.size(wanted)
    where = f" for {arguments.container}" if arguments.container else ""
    printer.text(f"{namespace}/{arguments.pod}: asked for {asked}{where}")
    if arguments.no_wait:
        return 0
    with output.Progress() as progress:
        is_done, words = _wait(api, pod, wanted, arguments, before=before, progress=progress)
    printer.text(words)
    return 0 if is_done else NOT_DONE


def annotation(now: str, value: str, container: str | None, *, containers: Sequence[str]) -> str:
    """The annotation with a new limit, for all `containers` or one of them. Raises InvalidInput."""
    if container is None:
        return value
    if container not in containers:
        raise InvalidInput(field="--container", value=container, fix=f"want one of {', '.join(containers)}")
    if now and "=" not in now:
        parts = dict.fromkeys(containers, now)
    else:
        parts = dict(part.strip().split("=", 1) for part in now.split(",") if part.strip())
    return ",".join(f"{name}={limit}" for name, limit in {**parts, container: value}.items())


def shares_of(api: ListApi, pod: JsonObject) -> list[Share]:
    """What a pod has of GPUs."""
    namespace = text(dig(pod, "metadata", "namespace"))
    claims = [
        text(dig(each, "resourceClaimName"))
        for each in (
            *items(dig(pod, "status", "resourceClaimStatuses")),
            *items(dig(pod, "spec", "resourceClaims")),
        )
        if dig(each, "resourceClaimName")
    ]
    found = [api.call("GET", f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{name}") for name in claims]
    return [share for card in cards([], found) for share in card.shares]


def _whole(value_bytes: int) -> int:
    return -(-value_bytes // quantity.MIB) * quantity.MIB


def _marks(shares: Sequence[Share], container: str | None) -> dict[str, tuple[str, str]]:
    """Reason and message of each share's condition Resized."""
    return {
        share.share_id: (each.reason, each.message)
        for share in shares
        if container in (None, share.request.partition("/")[0])
        for each in share.conditions
        if each.kind == "Resized"
    }


def _wait(
    api: ListApi,
    pod: JsonObject,
    wanted: int | None,
    arguments: argparse.Namespace,
    *,
    before: Mapping[str, tuple[str, str]],
    progress: output.Progress,
) -> tuple[bool, str]:
    begin_s = time.monotonic()
    while True:
        shares = [
            share
            for share in shares_of(api, pod)
            if arguments.container in (None, share.request.partition("/")[0])
        ]
        waited_s = time.monotonic() - begin_s
        verdict = judge(shares, wanted, before if waited_s < _PATIENCE_S else {})
        if verdict is not None:
            return verdict
        if waited_s > arguments.timeout:
            marks = "; ".join(f"{reason}: {message}" for reason, message in _marks(shares, None).values())
            return (
                False,
                f"not in force after {arguments.timeout:g} s: {marks or 'the node has not answered'}",
            )
        progress.say(f"waiting for the node, {waited_s:.0f} of {arguments.timeout:g} s")
        time.sleep(_POLL_S)


def judge(
    shares: Sequence[Share], wanted: int | None, before: Mapping[str, tuple[str, str]]
) -> tuple[bool, str] | None:
    """Whether the limit is in force, in words; None while that is not decided."""
    given = [share.consumed.get(names.CAPACITY_MEMORY, 0) for share in shares]
    goals = given if wanted is None else [wanted] * len(shares)
    if shares and [share.limit_bytes for share in shares] == goals:
        limits = ", ".join(f"{share.request} {output.size(share.limit_bytes)}" for share in shares)
        return True, f"in force: {limits}"
    for share_id, mark in _marks(shares, None).items():
        if mark[0] in REFUSALS and before.get(share_id) != mark:
            return False, f"{mark[0]}: {mark[1]}"
    return None
