# SPDX-License-Identifier: Apache-2.0
"""`aliquot budget`: what namespaces may have of the GPUs, and have; sets and removes a limit."""

import argparse
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig
from aliquot_cli import output
from aliquot_cli.cluster import add_cluster_options, command, connect, meta, namespace_of
from aliquot_cli.output import bar, size
from aliquot_webhook.amounts import Thing
from aliquot_webhook.kube import ListApi

_ROOT: Final = "/apis/aliquot.dev/v1alpha1"
_NAME: Final = "main"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `budget`."""
    parser = commands.add_parser("budget", help="what namespaces may have of the GPUs, and have")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="limits and use")
    show.add_argument("-A", "--all-namespaces", action="store_true")
    output.add_output_option(show)
    change = verbs.add_parser("set", help="limit a namespace; what is not named is not limited")
    change.add_argument("--memory", metavar="SIZE", help="GPU memory of all cards together, such as 64Gi")
    change.add_argument("--cores", type=int, metavar="PERCENT", help="100 is one card")
    change.add_argument("--shares", type=int, metavar="N", help="places on cards")
    change.add_argument("--gpus", type=int, metavar="N", help="cards, whole or in part")
    remove = verbs.add_parser("unset", help="remove the limit")
    for verb, run in ((show, run_show), (change, run_set), (remove, run_unset)):
        add_cluster_options(verb)
        verb.set_defaults(run=command(run))
    for verb in (change, remove):
        verb.add_argument("--name", default=_NAME, help=f"of the AliquotBudget (default {_NAME})")


def run_show(arguments: argparse.Namespace) -> int:
    """`aliquot budget show`."""
    where = "" if arguments.all_namespaces else f"/namespaces/{quote(namespace_of(arguments))}"
    budgets, _ = connect(arguments).list_all(f"{_ROOT}{where}/aliquotbudgets", {})
    printer = output.printer(arguments.output)
    if printer.for_people:
        printer.text(render(budgets))
    else:
        printer.document(document(budgets))
    return 0


def run_set(arguments: argparse.Namespace) -> int:
    """`aliquot budget set`."""
    stated = {str(thing): getattr(arguments, str(thing)) for thing in Thing}
    spec = {name: value for name, value in stated.items() if value is not None}
    if not spec:
        raise InvalidInput(
            field="budget set", value=None, fix="want at least one of --memory, --cores, --shares, --gpus"
        )
    if "memory" in spec:
        quantity.parse(spec["memory"], field="--memory")
    namespace = namespace_of(arguments)
    _apply(connect(arguments), namespace, arguments.name, spec)
    limits = ", ".join(f"{name} {value}" for name, value in spec.items())
    output.printer("table").text(f"{namespace}: at most {limits}")
    return 0


def run_unset(arguments: argparse.Namespace) -> int:
    """`aliquot budget unset`."""
    namespace = namespace_of(arguments)
    path = f"{_ROOT}/namespaces/{quote(namespace)}/aliquotbudgets/{quote(arguments.name)}"
    connect(arguments).call("DELETE", path)
    output.printer("table").text(f"{namespace}: no limit by {arguments.name}")
    return 0


def _apply(api: ListApi, namespace: str, name: str, spec: dict[str, object]) -> None:
    api.call(
        "PATCH",
        f"{_ROOT}/namespaces/{quote(namespace)}/aliquotbudgets/{quote(name)}",
        query={"fieldManager": "aliquot", "force": "true"},
        body={
            "apiVersion": "aliquot.dev/v1alpha1",
            "kind": "AliquotBudget",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        },
        content_type="application/apply-patch+yaml",
    )


def render(budgets: Sequence[JsonObject]) -> str:
    """For people: a line for each thing that is limited."""
    if not budgets:
        return "no budget: what a namespace may have is not limited\n"
    rows = [
        (
            meta(budget, "namespace"),
            meta(budget, "name"),
            str(thing),
            bar(amounts["used"], amounts["limit"]),
            _shown(thing, amounts["used"]),
            _shown(thing, amounts["limit"]),
            _shown(thing, amounts["consumed"]),
        )
        for budget in budgets
        for thing in Thing
        if (amounts := _amounts(budget, thing)) is not None
    ]
    return output.table(("NAMESPACE", "BUDGET", "OF", "", "USED", "LIMIT", "CONSUMED"), rows)


def document(budgets: Sequence[JsonObject]) -> list[dict[str, object]]:
    """For machines: memory in bytes."""
    return [
        {
            "namespace": meta(budget, "namespace"),
            "name": meta(budget, "name"),
            **{str(thing): found for thing in Thing if (found := _amounts(budget, thing)) is not None},
        }
        for budget in budgets
    ]


def _amounts(budget: JsonObject, thing: Thing) -> dict[str, int] | None:
    """Limit, used and consumed of a thing that the budget limits."""
    places = {"limit": ("spec",), "used": ("status", "used"), "consumed": ("status", "consumed")}
    found = {name: dig(budget, *path, str(thing)) for name, path in places.items()}
    if found["limit"] is None:
        return None
    return {
        name: 0 if value is None else quantity.parse(str(value), field=name) for name, value in found.items()
    }


def _shown(thing: Thing, amount: int) -> str:
    return size(amount) if thing is Thing.MEMORY else str(amount)
