# SPDX-License-Identifier: Apache-2.0
"""What `aliquot doctor` concludes from what it has gathered: findings, each with its fix. Pure."""

import base64
import binascii
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli.cards import Card
from aliquot_cli.cluster import meta
from aliquot_cli.output import counted

WEBHOOK: Final = "aliquot-webhook"
CONTROLLER: Final = "aliquot-controller"
AGENT: Final = "aliquot-agent"
CRDS: Final = ("aliquotbudgets.aliquot.dev", "aliquotledgers.aliquot.dev")
_OLDEST: Final = 35
_SOON: Final = timedelta(days=14)
_GOOD: Final = {"Ready": "True", "Healthy": "True", "WithinQuota": "True"}
_BAD: Final = {"ShimMissing": "True", "BooksDiffer": "True", "LedgerDamaged": "True"}


class Level(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer."""

    level: Level
    check: str
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Right:
    """Something that a service account of ours must be allowed to do."""

    account: str
    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    from_minor: int = 0

    def __str__(self) -> str:
        sub = f"/{self.subresource}" if self.subresource else ""
        return f"{self.account}: {self.verb} {self.resource}{sub}"


RIGHTS: Final = (
    Right(AGENT, "get", "resource.k8s.io", "resourceclaims"),
    Right(AGENT, "patch", "resource.k8s.io", "resourceclaims", "status"),
    Right(AGENT, "associated-node:patch", "resource.k8s.io", "resourceclaims", "driver", names.DRIVER, 36),
    *(
        Right(AGENT, verb, "resource.k8s.io", "resourceslices")
        for verb in ("list", "watch", "create", "update", "delete")
    ),
    Right(AGENT, "watch", "", "pods"),
    Right(WEBHOOK, "watch", "resource.k8s.io", "resourceslices"),
    Right(WEBHOOK, "create", "resource.k8s.io", "resourceclaimtemplates"),
    Right(WEBHOOK, "patch", "resource.k8s.io", "resourceclaimtemplates"),
    Right(WEBHOOK, "get", "resource.k8s.io", "resourceclaims"),
    Right(WEBHOOK, "update", "aliquot.dev", "aliquotledgers"),
    Right(CONTROLLER, "delete", "resource.k8s.io", "resourceclaimtemplates"),
    Right(CONTROLLER, "patch", "resource.k8s.io", "resourceclaims", "status"),
    Right(CONTROLLER, "patch", "resource.k8s.io", "resourceclaims", "binding", "", 36),
    Right(CONTROLLER, "patch", "aliquot.dev", "aliquotbudgets", "status"),
)
"""The rights whose absence is hard to see from outside; all are in the chart's roles."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was gathered. None: it does not exist, or cannot be read."""

    now: datetime
    minor: int
    server_problem: str = ""
    """Gate or DeviceClass, in the words of webhook.probe."""
    missing_crds: Sequence[str] = ()
    deployments: Mapping[str, JsonObject | None] = field(default_factory=dict)
    daemonset: JsonObject | None = None
    pods: Sequence[JsonObject] = ()
    """Of ours, in the system namespace."""
    lease: JsonObject | None = None
    configurations: Mapping[str, JsonObject | None] = field(default_factory=dict)
    """Mutating and validating, by kind."""
    secret: JsonObject | None = None
    denied: Sequence[Right] | None = ()
    """None: we may not ask."""
    agents: Mapping[str, JsonObject | str] = field(default_factory=dict)
    """Each node's agent: its status document, or why it gave none."""
    cards: Sequence[Card] = ()
    namespaces: Sequence[JsonObject] = ()
    left_pods: Sequence[JsonObject] = ()
    """Pods that still ask for our extended resources."""


def judge(facts: Facts) -> list[Finding]:
    """All findings, good ones too."""
    return [
        *_server(facts),
        *_workloads(facts),
        *_versions(facts),
        *_configurations(facts),
        *_certificates(facts),
        *_rights(facts),
        *_agents(facts),
        *_cards(facts),
        *_shares(facts),
        *_tenants(facts),
    ]


def _server(facts: Facts) -> Iterator[Finding]:
    if facts.minor < _OLDEST:
        fix = "upgrade to 1.36 or newer (1.35 with the gate on)"
        yield Finding(Level.ERROR, "kubernetes", f"1.{facts.minor} is not supported", fix)
    else:
        yield Finding(Level.OK, "kubernetes", f"1.{facts.minor}")
    if facts.server_problem:
        fix = "see the words of the problem; until then GPU pods are refused"
        yield Finding(Level.ERROR, "gates", facts.server_problem, fix)
    else:
        yield Finding(Level.OK, "gates", f"{names.CONSUMABLE_CAPACITY_GATE} is on, DeviceClass is there")
    for name in facts.missing_crds:
        fix = "helm upgrade --install the chart again; until then GPU pods are refused"
        yield Finding(Level.ERROR, "crds", f"CustomResourceDefinition {name} is missing", fix)


def _workloads(facts: Facts) -> Iterator[Finding]:
    for name, deployment in facts.deployments.items():
        if deployment is None:
            yield Finding(
                Level.ERROR, name, "its Deployment does not exist", "helm upgrade --install the chart"
            )
            continue
        wanted, ready = _count(deployment, "spec", "replicas"), _count(deployment, "status", "readyReplicas")
        fix = f"kubectl -n {meta(deployment, 'namespace')} describe deployment {name}"
        if not ready:
            yield Finding(Level.ERROR, name, f"none of its {wanted} replicas is ready", fix)
        elif ready < wanted:
            yield Finding(Level.WARNING, name, f"{ready} of {wanted} replicas are ready", fix)
        else:
            yield Finding(Level.OK, name, f"{ready} of {wanted} replicas are ready")
    daemons = facts.daemonset
    if daemons is None:
        yield Finding(Level.ERROR, AGENT, "its DaemonSet does not exist", "helm upgrade --install the chart")
    else:
        wanted = _count(daemons, "status", "desiredNumberScheduled")
        ready = _count(daemons, "status", "numberReady")
        fix = f"kubectl -n {meta(daemons, 'namespace')} describe daemonset {AGENT}"
        if not wanted:
            fix = "label GPU nodes as the DaemonSet's nodeSelector says, or change it"
            yield Finding(Level.ERROR, AGENT, "no node is chosen by its nodeSelector", fix)
        elif ready < wanted:
            yield Finding(Level.ERROR, AGENT, f"ready on {ready} of {wanted} nodes", fix)
        else:
            yield Finding(Level.OK, AGENT, f"ready on {ready} of {wanted} nodes")
    if facts.deployments.get(CONTROLLER) and not dig(facts.lease, "spec", "holderIdentity"):
        fix = f"look at the logs of {CONTROLLER}"
        yield Finding(Level.WARNING, CONTROLLER, "no replica leads: nothing is cleaned up", fix)


def _count(of: object, *path: str) -> int:
    value = dig(of, *path)
    return value if isinstance(value, int) else 0


def _versions(facts: Facts) -> Iterator[Finding]:
    """Drift: pods of one component that run different images."""
    images: dict[str, set[str]] = {}
    for pod in facts.pods:
        component = text(dig(pod, "metadata", "labels", "app.kubernetes.io/name"))
        for status in items(dig(pod, "status", "containerStatuses")):
            image = text(dig(status, "imageID")) or text(dig(status, "image"))
            images.setdefault(f"{component}/{text(dig(status, 'name'))}", set()).add(image)
    mixed = sorted(part for part, used in images.items() if len(used) > 1)
    for part in mixed:
        what = f"{part} runs {len(images[part])} different images: {', '.join(sorted(images[part]))}"
        yield Finding(Level.WARNING, "drift", what, "wait for the rollout, or kubectl rollout restart it")
    drivers = {version for card in facts.cards if (version := _driver(card))}
    if len(drivers) > 1:
        what = f"nodes have different GPU drivers: {', '.join(sorted(drivers))}"
        yield Finding(Level.WARNING, "drift", what, "bring all nodes to one driver where programs need it")
    if not mixed and len(drivers) <= 1:
        yield Finding(Level.OK, "drift", f"one image each; driver {', '.join(drivers) or 'unknown'}")


def _driver(card: Card) -> str:
    return text(dig(card.raw, "attributes", "driverVersion", "version"))


def _configurations(facts: Facts) -> Iterator[Finding]:
    for kind, configuration in facts.configurations.items():
        if configuration is None:
            what = f"{kind} {WEBHOOK} does not exist: pods are not converted, claims not checked"
            yield Finding(Level.ERROR, "webhooks", what, "helm upgrade --install the chart")
            continue
        hooks = [obj(each) for each in items(configuration.get("webhooks"))]
        empty = [text(each.get("name")) for each in hooks if not dig(each, "clientConfig", "caBundle")]
        if empty:
            what = f"{', '.join(empty)}: caBundle is empty, so every call of it fails"
            fix = f"the controller (or cert-manager) writes it: look at the logs of {CONTROLLER}"
            yield Finding(Level.ERROR, "webhooks", what, fix)
        ignored = [
            text(each.get("name"))
            for each in hooks
            if each.get("failurePolicy") == "Ignore" and not text(each.get("name")).startswith("pods-with")
        ]
        if ignored:
            what = f"{', '.join(ignored)}: failurePolicy is Ignore, so what is not checked passes"
            yield Finding(Level.WARNING, "webhooks", what, "set it to Fail")
        if not empty and not ignored:
            yield Finding(Level.OK, "webhooks", f"{kind}: {counted(len(hooks), 'webhook')}")


def _certificates(facts: Facts) -> Iterator[Finding]:
    if facts.secret is None:
        what = "the Secret with the webhook's certificate cannot be read"
        fix = f"kubectl -n aliquot-system get secret {WEBHOOK}-tls; the webhook makes it when it starts"
        yield Finding(Level.WARNING, "certificates", what, fix)
        return
    try:
        serving = x509.load_pem_x509_certificate(_decoded(facts.secret, "data", "tls.crt"))
        bundles = [
            x509.load_pem_x509_certificates(_decoded(each, "clientConfig", "caBundle"))
            for configuration in facts.configurations.values()
            for each in items(obj(configuration).get("webhooks"))
            if dig(each, "clientConfig", "caBundle")
        ]
    except ValueError as error:
        fix = f"delete the Secret {WEBHOOK}-tls: the webhook makes it anew"
        yield Finding(Level.ERROR, "certificates", f"they cannot be read: {error}", fix)
        return
    left = serving.not_valid_after_utc - facts.now
    end = serving.not_valid_after_utc.strftime("%Y-%m-%d")
    fix = f"look at the logs of {WEBHOOK} and {CONTROLLER} for why they do not renew it"
    if left <= timedelta():
        yield Finding(Level.ERROR, "certificates", f"the webhook's certificate ended on {end}", fix)
    elif left < _SOON:
        yield Finding(Level.WARNING, "certificates", f"the webhook's certificate ends on {end}", fix)
    else:
        yield Finding(Level.OK, "certificates", f"valid until {end}")
    if not all(any(_issued(serving, authority) for authority in bundle) for bundle in bundles):
        what = "caBundle of a webhook configuration does not match the certificate that is served"
        fix = "the controller corrects it within seconds; with cert-manager look at its injector"
        yield Finding(Level.ERROR, "certificates", what, fix)


def _decoded(of: object, *path: str) -> bytes:
    try:
        return base64.b64decode(text(dig(of, *path)), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{'.'.join(path)} is no base64") from error


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _rights(facts: Facts) -> Iterator[Finding]:
    if facts.denied is None:
        what = "you may not ask what others are allowed to do"
        yield Finding(Level.WARNING, "rbac", what, "run doctor as an administrator")
    elif facts.denied:
        for right in facts.denied:
            yield Finding(Level.ERROR, "rbac", f"{right} is not allowed", "helm upgrade --install the chart")
    else:
        yield Finding(Level.OK, "rbac", "the service accounts have their rights")


def _agents(facts: Facts) -> Iterator[Finding]:
    """What each node's agent says: toolkit and CDI, driver, node configuration, GPUs that are left out."""
    for node, status in sorted(facts.agents.items()):
        if isinstance(status, str):
            fix = f"look at the agent's log on {node}; port 9410 must be open to the API server"
            yield Finding(Level.WARNING, f"node {node}", f"its agent cannot be asked: {status}", fix)
            continue
        problems = [f"{part}: {text(reason)}" for part, reason in obj(status.get("notReady")).items()]
        for problem in problems:
            yield Finding(
                Level.ERROR, f"node {node}", f"its agent is not ready: {problem}", _node_fix(problem)
            )
        if status.get("configProblem"):
            what = f"node configuration is not understood: {text(status.get('configProblem'))}"
            fix = "correct ConfigMap aliquot-node-config; the last good one counts meanwhile"
            yield Finding(Level.ERROR, f"node {node}", what, fix)
        for each in items(status.get("leftOut")):
            what = f"GPU {dig(each, 'index')} is left out: {text(dig(each, 'message'))}"
            level = Level.OK if dig(each, "cause") == "configured" else Level.WARNING
            yield Finding(level, f"node {node}", what, "docs/node-agent.md says what each cause means")
        if not problems and not status.get("configProblem"):
            gpus = counted(len(items(status.get("gpus"))), "GPU")
            yield Finding(Level.OK, f"node {node}", f"agent ready, {gpus}, driver and CDI answer")


def _node_fix(problem: str) -> str:
    if re.search(r"\bcdi\b|\bspec\b|toolkit", problem, re.IGNORECASE):
        return "install NVIDIA's container toolkit: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
    if re.search(r"nvml|driver", problem, re.IGNORECASE):
        return "install or load NVIDIA's driver on the node (nvidia-smi must work there)"
    return "the words say what is missing"


def _cards(facts: Facts) -> Iterator[Finding]:
    published = [card for card in facts.cards if card.published]
    if not published:
        fix = "look at the agents' findings above"
        yield Finding(Level.ERROR, "gpus", "no node publishes a GPU", fix)
        return
    for card in facts.cards:
        if not card.published:
            what = f"{card.node}/{card.uuid} is held by {len(card.shares)} claims and not published"
            yield Finding(Level.WARNING, "gpus", what, "look at its node's agent")
        for taint in card.taints:
            what = f"{card.node}/{card.uuid} is tainted {taint.key}={taint.value}:{taint.effect}"
            fix = f"aliquot uncordon {card.uuid}"
            if not taint.key.endswith("/cordoned"):
                fix = "reset the GPU or reboot its node; the agent takes the taint away when it is well"
            yield Finding(Level.WARNING, "gpus", what, fix)
    yield Finding(Level.OK, "gpus", f"{counted(len(published), 'GPU')} published")


def _shares(facts: Facts) -> Iterator[Finding]:
    for card in facts.cards:
        for share in card.shares:
            for each in share.conditions:
                if _GOOD.get(each.kind, each.status) != each.status or _BAD.get(each.kind) == each.status:
                    what = f"{share.namespace}/{share.claim} on {card.node}: {each.kind} {each.reason}"
                    fix = "docs/enforcement.md says what the condition means"
                    yield Finding(Level.WARNING, "shares", f"{what}: {each.message}", fix)


def _tenants(facts: Facts) -> Iterator[Finding]:
    opted = [
        meta(each, "name")
        for each in facts.namespaces
        if dig(each, "metadata", "labels", names.INJECT_LABEL) == names.INJECT_ENABLED
    ]
    if not opted:
        fix = f"kubectl label namespace NAME {names.INJECT_LABEL}={names.INJECT_ENABLED}"
        yield Finding(Level.WARNING, "namespaces", "no namespace has opted in", fix)
    else:
        yield Finding(Level.OK, "namespaces", f"{counted(len(opted), 'namespace')} opted in")
    for pod in facts.left_pods[:20]:
        what = f"pod {meta(pod, 'namespace')}/{meta(pod, 'name')} asks for GPUs and was not converted"
        fix = f"aliquot explain pod {meta(pod, 'name')} -n {meta(pod, 'namespace')}"
        yield Finding(Level.WARNING, "namespaces", what, fix)
