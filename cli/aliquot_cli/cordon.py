# SPDX-License-Identifier: Apache-2.0
"""`aliquot cordon` and `uncordon`: keeps new claims away from one GPU.

By a DeviceTaintRule where the server has them (KEP-5055), else by `publish: false` in the node configuration:
the GPU leaves its node's slice, and what runs on it goes on.
"""

import argparse
from collections.abc import Sequence

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_cli import nodeconfigs, output
from aliquot_cli.cards import Card
from aliquot_cli.causes import CORDON_TAINT
from aliquot_cli.cluster import add_cluster_options, command, connect
from aliquot_cli.fleet import read_cards
from aliquot_cli.taintrules import GROUP, rules_path, served_version
from aliquot_cli.uuids import is_meant
from aliquot_webhook.kube import ApiError, ListApi


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds both."""
    cordon = commands.add_parser("cordon", help="keep new claims away from a GPU")
    cordon.add_argument("--evict", action="store_true", help="and end the pods that use it (NoExecute)")
    uncordon = commands.add_parser("uncordon", help="let claims have a cordoned GPU again")
    for parser, run in ((cordon, run_cordon), (uncordon, run_uncordon)):
        parser.add_argument("gpu", metavar="GPU", help="UUID, or its unmistakable beginning")
        add_cluster_options(parser, namespaced=False)
        parser.set_defaults(run=command(run))


def run_cordon(arguments: argparse.Namespace) -> int:
    """`aliquot cordon GPU`."""
    api = connect(arguments)
    card = find(read_cards(api), arguments.gpu)
    version = served_version(api)
    printer = output.printer("table")
    if version is not None:
        effect = "NoExecute" if arguments.evict else "NoSchedule"
        create_rule(api, version, card, effect=effect)
        printer.text(f"{card.node}/{card.uuid} is cordoned: DeviceTaintRule {rule_name(card)}, {effect}")
        return 0
    if arguments.evict:
        raise InvalidInput(
            field="--evict", value=True, fix="this API server has no DeviceTaintRule; drain the node instead"
        )
    namespace = arguments.system_namespace
    nodeconfigs.change(api, namespace, lambda text: nodeconfigs.unpublished(text, card.node, card.uuid))
    printer.text(f"{card.node}/{card.uuid} is cordoned: publish: false in ConfigMap {nodeconfigs.NAME}")
    return 0


def run_uncordon(arguments: argparse.Namespace) -> int:
    """`aliquot uncordon GPU`."""
    api = connect(arguments)
    version = served_version(api)
    cards = [card for card in read_cards(api) if is_meant(card.uuid, arguments.gpu)]
    removed = version is not None and len(cards) == 1 and delete_rule(api, version, cards[0])
    removed = removed or nodeconfigs.change(
        api, arguments.system_namespace, lambda text: nodeconfigs.published(text, arguments.gpu)
    )
    if not removed:
        raise InvalidInput(field="GPU", value=arguments.gpu, fix="it is not cordoned by aliquot cordon")
    output.printer("table").text(f"{arguments.gpu} takes claims again")
    return 0


def find(cards: Sequence[Card], words: str) -> Card:
    """The one GPU that `words` mean. Raises InvalidInput."""
    found = [card for card in cards if is_meant(card.uuid, words)]
    if len(found) != 1:
        known = ", ".join(card.uuid for card in (found or cards)[:8]) or "none is published"
        count = f"{len(found)} GPUs begin so" if found else "no GPU has it"
        raise InvalidInput(field="GPU", value=words, fix=f"{count}; want a UUID: {known}")
    return found[0]


def rule_name(card: Card) -> str:
    """Name of the DeviceTaintRule that cordons a GPU."""
    return f"aliquot-cordon-{card.pool}.{card.device}"


def create_rule(api: ListApi, version: str, card: Card, *, effect: str) -> None:
    """Taints the GPU; another effect than before replaces it."""
    body = {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule_name(card)},
        "spec": {
            "deviceSelector": {"driver": names.DRIVER, "pool": card.pool, "device": card.device},
            "taint": {"key": CORDON_TAINT, "value": "by-hand", "effect": effect},
        },
    }
    api.call(
        "PATCH",
        f"{rules_path(version)}/{rule_name(card)}",
        query={"fieldManager": "aliquot", "force": "true"},
        body=body,
        content_type="application/apply-patch+yaml",
    )


def delete_rule(api: ListApi, version: str, card: Card) -> bool:
    """Whether there was a rule to delete."""
    try:
        api.call("DELETE", f"{rules_path(version)}/{rule_name(card)}")
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True
