# SPDX-License-Identifier: Apache-2.0
"""`aliquot doctor`: looks at everything that Aliquot needs, and says how to put right what is not."""

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli import checks, output
from aliquot_cli.checks import AGENT, CONTROLLER, CRDS, RIGHTS, WEBHOOK, Facts, Finding, Level, Right
from aliquot_cli.cluster import add_cluster_options, command, connect, meta, optional_list
from aliquot_cli.diagnosis import RESOURCES
from aliquot_cli.fleet import read_cards
from aliquot_cli.gathering import optional_get_allowed
from aliquot_cli.output import Colour, Printer
from aliquot_webhook.kube import ApiError, ListApi
from aliquot_webhook.probe import probe

NOT_WELL: Final = 3
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_COLOURS: Final = {Level.OK: Colour.GREEN, Level.WARNING: Colour.YELLOW, Level.ERROR: Colour.RED}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `doctor`."""
    parser = commands.add_parser("doctor", help="is everything there that Aliquot needs")
    add_cluster_options(parser, namespaced=False)
    output.add_output_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is not well")
    parser.set_defaults(run=command(run))


def run(arguments: argparse.Namespace) -> int:
    """`aliquot doctor`; 3 where a finding is an error."""
    findings = checks.judge(gather(connect(arguments), namespace=arguments.system_namespace))
    shown = [each for each in findings if not (arguments.quiet and each.level is Level.OK)]
    printer = output.printer(arguments.output)
    if printer.for_people:
        printer.text(render(shown, printer))
    else:
        printer.document(
            [
                {"level": str(each.level), "check": each.check, "what": each.what, "fix": each.fix}
                for each in shown
            ]
        )
    return NOT_WELL if any(each.level is Level.ERROR for each in findings) else 0


def render(findings: Sequence[Finding], printer: Printer) -> str:
    """For people."""
    lines = []
    for each in findings:
        lines.append(f"{printer.paint(f'{each.level:8}', _COLOURS[each.level])} {each.check}: {each.what}")
        if each.fix and each.level is not Level.OK:
            lines.append(f"         fix: {each.fix}")
    return "".join(f"{line}\n" for line in lines)


def gather(api: ListApi, *, namespace: str) -> Facts:
    """Asks for everything. Raises ApiError where not even the version is answered."""
    minor = int(re.sub(r"\D", "", text(api.call("GET", "/version").get("minor"))) or 0)
    workloads = f"/apis/apps/v1/namespaces/{namespace}"
    ours = {"labelSelector": "app.kubernetes.io/part-of=aliquot"}
    pods = optional_list(api, f"/api/v1/namespaces/{namespace}/pods", ours)
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    return Facts(
        now=datetime.now(UTC),
        minor=minor,
        server_problem=_server_problem(api, namespace),
        missing_crds=[name for name in CRDS if optional_get_allowed(api, f"{crds}/{name}") is None],
        deployments={
            name: optional_get_allowed(api, f"{workloads}/deployments/{name}")
            for name in (WEBHOOK, CONTROLLER)
        },
        daemonset=optional_get_allowed(api, f"{workloads}/daemonsets/{AGENT}"),
        pods=pods,
        lease=optional_get_allowed(
            api, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{CONTROLLER}"
        ),
        configurations={
            kind: optional_get_allowed(api, f"{_ADMISSION}/{kind.lower()}s/{WEBHOOK}")
            for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        },
        secret=_secret(api, namespace),
        denied=denied(api, namespace, minor),
        agents=_ask_agents(api, pods),
        cards=read_cards(api),
        namespaces=optional_list(api, "/api/v1/namespaces"),
        left_pods=[pod for pod in optional_list(api, "/api/v1/pods") if _is_left(pod)],
    )


def _server_problem(api: ListApi, namespace: str) -> str:
    try:
        return probe(api, namespace=namespace).problem or ""
    except ApiError as error:
        return f"the server cannot be probed: {error}"


def _secret(api: ListApi, namespace: str) -> JsonObject | None:
    """The webhook's certificate: its own, or cert-manager's."""
    path = f"/api/v1/namespaces/{namespace}/secrets"
    own = optional_get_allowed(api, f"{path}/{WEBHOOK}-tls")
    return own or optional_get_allowed(api, f"{path}/{WEBHOOK}-cert-manager")


def denied(api: ListApi, namespace: str, minor: int) -> list[Right] | None:
    """The rights that are missing, by SubjectAccessReview; None where we may not ask."""
    missing = []
    for right in RIGHTS:
        if minor < right.from_minor:
            continue
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
            "name": right.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{right.account}",
                "groups": [
                    "system:serviceaccounts",
                    f"system:serviceaccounts:{namespace}",
                    "system:authenticated",
                ],
                "resourceAttributes": {key: value for key, value in attributes.items() if value},
            },
        }
        try:
            answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review)
        except ApiError as error:
            if error.status == 403:
                return None
            raise
        if dig(answer, "status", "allowed") is not True:
            missing.append(right)
    return missing


def _ask_agents(api: ListApi, pods: Sequence[JsonObject]) -> dict[str, JsonObject | str]:
    """What each node's agent says, or why it says nothing."""
    agents = [
        pod
        for pod in pods
        if dig(pod, "metadata", "labels", "app.kubernetes.io/name") == AGENT
        and not dig(pod, "metadata", "deletionTimestamp")
    ]
    said: dict[str, JsonObject | str] = {}
    with output.Progress() as progress:
        for number, pod in enumerate(agents, 1):
            progress.say(f"asking the agents, {number} of {len(agents)}")
            said[text(dig(pod, "spec", "nodeName"))] = ask_agent(api, pod)
    return said


def ask_agent(api: ListApi, pod: JsonObject) -> JsonObject | str:
    """An agent's status document, through the API server; or why there is none."""
    path = f"/api/v1/namespaces/{meta(pod, 'namespace')}/pods/{meta(pod, 'name')}:9410/proxy/status"
    try:
        return api.call("GET", path)
    except ApiError as error:
        return error.message


def _is_left(pod: JsonObject) -> bool:
    return any(
        name in RESOURCES
        for container in items(dig(pod, "spec", "containers"))
        for name in obj(dig(container, "resources", "limits"))
    ) and not dig(pod, "spec", "nodeName")
