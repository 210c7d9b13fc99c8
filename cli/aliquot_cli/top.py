# SPDX-License-Identifier: Apache-2.0
"""`aliquot top`: each GPU and its shares, with what they may take and what they take."""

import argparse
import time
from collections.abc import Sequence
from typing import Final

from aliquot_api import names
from aliquot_cli import output
from aliquot_cli.cards import Card, Share
from aliquot_cli.cluster import (
    add_cluster_options,
    command,
    connect,
)
from aliquot_cli.fleet import read_cards
from aliquot_cli.output import Colour, Printer, bar, counted, percent, size
from aliquot_webhook.kube import ListApi

_CLEAR: Final = "\033[H\033[2J"
_NEARLY: Final = 0.9


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `top`."""
    parser = commands.add_parser("top", help="GPUs and their shares, with use and limit")
    add_cluster_options(parser)
    output.add_output_option(parser)
    parser.add_argument("--node", metavar="NAME", help="only this node")
    parser.add_argument("-w", "--watch", action="store_true", help="again and again, until interrupted")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="with --watch")
    parser.set_defaults(run=command(run))


def run(arguments: argparse.Namespace) -> int:
    """`aliquot top`."""
    api, printer = connect(arguments), output.printer(arguments.output)
    while True:
        found = gather(api, node=arguments.node, namespace=arguments.namespace)
        if printer.for_people:
            printer.text((_CLEAR if arguments.watch else "") + render(found, printer))
        else:
            printer.document(document(found))
        if not arguments.watch:
            return 0
        time.sleep(max(0.2, arguments.interval))


def gather(api: ListApi, *, node: str | None = None, namespace: str | None = None) -> tuple[Card, ...]:
    """The GPUs; with a namespace those that it has shares of, and only these shares are named."""
    found = read_cards(api, namespace=namespace)
    return tuple(card for card in found if node in (None, card.node) and (card.shares or namespace is None))


def render(found: Sequence[Card], printer: Printer) -> str:
    """For people: a line for each GPU, then its shares."""
    if not found:
        return "no GPU is published and none is held: see `aliquot doctor`\n"
    head = ("", "MEMORY", "LIMIT", "USED", "CORES", "PEAK", "DENIED", "PODS")
    rows: list[tuple[str, ...]] = []
    colours: list[Colour] = [Colour.BOLD]
    for card in found:
        rows.append(_card_row(card))
        colours.append(Colour.RED if card.taints or not card.published else Colour.NONE)
        for share in card.shares:
            rows.append(_share_row(share))
            colours.append(_share_colour(share))
    lines = output.table(head, rows).splitlines()
    painted = [printer.paint(line, colour) for line, colour in zip(lines, colours, strict=True)]
    return "\n".join([*painted, _sum(found)]) + "\n"


def document(found: Sequence[Card]) -> list[dict[str, object]]:
    """For machines: sizes in bytes."""
    return [
        {
            "node": card.node,
            "uuid": card.uuid,
            "product": card.product,
            "sharing": card.sharing,
            "memory": card.nominal_bytes,
            "published": dict(card.published),
            "taken": {name: card.taken(name) for name in card.published},
            "taints": [{"key": each.key, "value": each.value, "effect": each.effect} for each in card.taints],
            "shares": [_share_document(share) for share in card.shares],
        }
        for card in found
    ]


def _share_document(share: Share) -> dict[str, object]:
    return {
        "namespace": share.namespace,
        "claim": share.claim,
        "request": share.request,
        "share": share.share_id,
        "pods": list(share.pods),
        "consumed": dict(share.consumed),
        "limit": share.limit_bytes,
        "used": share.used_bytes,
        "peak": share.peak_bytes,
        "denied": share.denied,
        "processes": share.processes,
        "throttledSeconds": share.throttled_s,
        "conditions": {each.kind: each.reason for each in share.conditions},
    }


def _card_row(card: Card) -> tuple[str, ...]:
    state = card.product
    if not card.published:
        state = "not published"
    elif card.taints:
        state = ", ".join(f"{each.key}={each.value}:{each.effect}" for each in card.taints)
    limits = sum(share.memory_bytes for share in card.shares)
    used = sum(share.used_bytes or 0 for share in card.shares)
    cores = card.published.get(names.CAPACITY_CORES, 0)
    return (
        f"{card.node}/{card.uuid}",
        bar(limits, card.nominal_bytes),
        f"{size(limits)}/{size(card.nominal_bytes)}",
        f"{size(used)}",
        f"{card.taken(names.CAPACITY_CORES)}/{cores}",
        "",
        "",
        state,
    )


def _share_row(share: Share) -> tuple[str, ...]:
    return (
        f"  {share.namespace}/{share.claim}",
        bar(share.used_bytes or 0, share.memory_bytes),
        size(share.memory_bytes),
        size(share.used_bytes),
        str(share.consumed.get(names.CAPACITY_CORES, "-")),
        size(share.peak_bytes),
        "-" if share.denied is None else str(share.denied),
        ", ".join(share.pods) or "-",
    )


def _share_colour(share: Share) -> Colour:
    if any(each.kind == "WithinQuota" and each.status == "False" for each in share.conditions):
        return Colour.RED
    return Colour.YELLOW if (share.used_bytes or 0) >= _NEARLY * share.memory_bytes > 0 else Colour.GREEN


def _sum(found: Sequence[Card]) -> str:
    whole = sum(card.nominal_bytes for card in found)
    given = sum(share.memory_bytes for card in found for share in card.shares)
    used = sum(share.used_bytes or 0 for card in found for share in card.shares)
    gpus = counted(len(found), "GPU")
    shares = counted(sum(len(card.shares) for card in found), "share")
    return (
        f"{gpus}, {shares}: {size(given)} of {size(whole)} given ({percent(given, whole)}),"
        f" {size(used)} in use ({percent(used, given)} of what is given)"
    )
