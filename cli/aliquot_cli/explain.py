# SPDX-License-Identifier: Apache-2.0
"""`aliquot explain`: what admission does with a pod, and why it does not run: GPU by GPU, node by node."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli import diagnosis, output
from aliquot_cli.causes import Cause, Diagnosis, Finding, NodeLook
from aliquot_cli.cluster import add_cluster_options, command, connect, meta, namespace_of
from aliquot_cli.gathering import World, facts_of, look_at_world
from aliquot_cli.output import Colour, Printer
from aliquot_cli.workloads import path_of, pods_of, read_manifest, read_target
from aliquot_webhook.inventory import parse_slice, summarise
from aliquot_webhook.kube import ApiError, ListApi
from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, rewrite

NOT_WELL: Final = 3
"""Exit status: something keeps a pod from running."""


class Answer:
    """What is said about one pod."""

    def __init__(self, *, pod: JsonObject, diagnosis: Diagnosis, changes: Sequence[str] = ()) -> None:
        name = meta(pod, "name") or meta(pod, "generateName") + "…"
        self.name = f"{meta(pod, 'namespace')}/{name}"
        self.diagnosis = diagnosis
        self.changes = changes
        """What admission makes of it."""

    def document(self) -> dict[str, object]:
        """For machines."""
        return {
            "pod": self.name,
            "well": self.diagnosis.is_well,
            "findings": [
                {"cause": str(each.cause), "what": each.what, "fix": each.fix}
                for each in self.diagnosis.findings
            ],
            "admission": list(self.changes),
            "scheduler": self.diagnosis.scheduler,
            "fitsOn": list(self.diagnosis.fits_on),
            "nodes": [_node_document(look) for look in self.diagnosis.looks],
        }

    def render(self, printer: Printer) -> str:
        """For people."""
        lines = [printer.paint(f"pod {self.name}", Colour.BOLD)]
        lines += [f"  admission: {change}" for change in self.changes]
        for each in self.diagnosis.findings:
            colour = Colour.GREEN if self.diagnosis.is_well else Colour.RED
            lines.append(f"  {printer.paint(str(each.cause), colour)}: {each.what}")
            if each.fix:
                lines.append(f"    fix: {each.fix}")
        if self.diagnosis.scheduler:
            lines.append(f"  the scheduler says: {self.diagnosis.scheduler}")
        rows = [row for look in self.diagnosis.looks for row in _rows(look)]
        if rows:
            indented = output.table(("NODE", "GPU", "REQUEST", "ANSWER"), rows).splitlines()
            lines += ["", *(f"  {line}" for line in indented)]
        return "\n".join(lines) + "\n"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `explain`."""
    parser = commands.add_parser("explain", help="why a pod does not run, or what would become of a manifest")
    parser.add_argument("target", nargs="*", metavar="TARGET", help="pod NAME, pod/NAME, deployment/NAME, …")
    parser.add_argument("-f", "--filename", metavar="FILE", help="a manifest; - is standard input")
    add_cluster_options(parser)
    output.add_output_option(parser)
    parser.set_defaults(run=command(run))


def run(arguments: argparse.Namespace) -> int:
    """`aliquot explain`; 0 where all is well, 3 where something keeps a pod from running."""
    if bool(arguments.target) == bool(arguments.filename):
        raise InvalidInput(
            field="explain", value=arguments.target, fix="want a TARGET or -f FILE, one of them"
        )
    api, namespace = connect(arguments), namespace_of(arguments)
    if arguments.filename:
        source = (
            sys.stdin.read() if arguments.filename == "-" else Path(arguments.filename).read_text("utf-8")
        )
        answers = explain_manifest(api, source, namespace, system_namespace=arguments.system_namespace)
    else:
        kind, name = read_target(arguments.target)
        answers = explain_target(api, kind, namespace, name, system_namespace=arguments.system_namespace)
    printer = output.printer(arguments.output)
    if printer.for_people:
        printer.text("\n".join(answer.render(printer) for answer in answers))
    else:
        printer.document([answer.document() for answer in answers])
    return 0 if all(answer.diagnosis.is_well for answer in answers) else NOT_WELL


def explain_target(
    api: ListApi, kind: str, namespace: str, name: str, *, system_namespace: str
) -> list[Answer]:
    """Why the pods of a workload do not run."""
    pods, failures = pods_of(api, kind, namespace, name)
    world = look_at_world(api, system_namespace=system_namespace)
    answers = [Answer(pod=pod, diagnosis=diagnosis.diagnose(facts_of(api, pod, world))) for pod in pods]
    if failures:
        refused = {"metadata": {"namespace": namespace, "name": f"{kind}/{name}"}}
        findings = tuple(_refused(message) for message in failures)
        answers.append(Answer(pod=refused, diagnosis=Diagnosis(findings)))
    if not answers:
        raise InvalidInput(field="TARGET", value=f"{kind}/{name}", fix="it has no pod, and no event says why")
    return answers


def explain_manifest(api: ListApi, written: str, namespace: str, *, system_namespace: str) -> list[Answer]:
    """What admission would do with the pods of a manifest, and where they would fit. Creates nothing."""
    pods, known = read_manifest(written, namespace=namespace)
    world = look_at_world(api, system_namespace=system_namespace)
    return [_admit(api, pod, world, known) for pod in pods]


def _admit(api: ListApi, pod: JsonObject, world: World, known: Mapping[str, JsonObject]) -> Answer:
    path = path_of("pod", meta(pod, "namespace"))
    try:
        admitted = api.call("POST", path, query={"dryRun": "All"}, body=pod)
    except ApiError as error:
        if not 400 <= error.status < 500:
            raise
        return Answer(pod=pod, diagnosis=Diagnosis((_refused(error.message),)))
    seen = {**admitted, "metadata": {**obj(admitted.get("metadata")), "uid": ""}, "status": {}}
    facts = facts_of(api, seen, world, known={**_planned(pod, seen, world), **known})
    return Answer(pod=seen, diagnosis=diagnosis.diagnose(facts), changes=changes(pod, seen))


def _planned(pod: JsonObject, admitted: JsonObject, world: World) -> dict[str, JsonObject]:
    """Specs of templates that admission would make, and a dry run does not: by the webhook's own rules.

    Their names are hashes of their content, so one with the right name is the right one.
    """
    wanted = {
        text(dig(each, "resourceClaimTemplateName"))
        for each in items(dig(admitted, "spec", "resourceClaims"))
    }
    inventory = summarise(parse_slice(each) for each in world.slices)
    found = {}
    for is_distinct in (True, False):
        result = rewrite(pod, Policy(count_is_distinct=is_distinct), inventory)
        templates = result.templates if isinstance(result, Patch) else ()
        found.update({each.name: obj(dict(each.spec)) for each in templates if each.name in wanted})
    return found


def changes(before: JsonObject, after: JsonObject) -> list[str]:
    """What admission did, in words."""
    had = {text(dig(each, "name")) for each in items(dig(before, "spec", "resourceClaims"))}
    said = []
    request = text(dig(after, "metadata", "annotations", names.REQUEST_ANNOTATION))
    if request and not dig(before, "metadata", "annotations", names.REQUEST_ANNOTATION):
        said.append(f"it is converted: {request} becomes a claim")
    for each in map(obj, items(dig(after, "spec", "resourceClaims"))):
        if each.get("name") not in had:
            said.append(
                f"claim {each.get('name')} from template {text(each.get('resourceClaimTemplateName'))}"
            )
    return said or ["it is left as it is"]


def _refused(message: str) -> Finding:
    return Finding(Cause.REFUSED, message)


def _rows(look: NodeLook) -> list[tuple[str, str, str, str]]:
    if look.refusals:
        return [(look.node, "", "", f"the node does not take the pod: {' and '.join(look.refusals)}")]
    return [
        (look.node, each.card.uuid, each.request, "fits" if each.short is None else each.words)
        for each in look.placement.looks
    ]


def _node_document(look: NodeLook) -> dict[str, object]:
    return {
        "node": look.node,
        "fits": look.placement.fits and not look.refusals,
        "refusals": list(look.refusals),
        "gpus": [
            {
                "uuid": each.card.uuid,
                "request": each.request,
                "short": each.short and str(each.short),
                "words": each.words,
            }
            for each in look.placement.looks
        ],
    }
