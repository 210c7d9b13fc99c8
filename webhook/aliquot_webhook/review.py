# SPDX-License-Identifier: Apache-2.0
"""An AdmissionReview in, an AdmissionReview out: everything between HTTP and `rewrite`."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NotRequired, Protocol, TypedDict

from aliquot_api.errors import InvalidInput
from aliquot_webhook.checks import DNS_LABEL
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.probe import ServerState
from aliquot_webhook.rewrite import Patch, Reason, Refusal, rewrite
from aliquot_webhook.templates import TemplateUnavailable
from aliquot_webhook.wire import JsonObject, dig, obj, text

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
_CODES: Final = {Reason.INVALID: 400, Reason.NOT_READY: 503}
_WARNING_LENGTH: Final = 256
"""The API server truncates longer warnings."""


class Status(TypedDict):
    """Why a request is refused."""

    code: int
    message: str


class AdmissionResponse(TypedDict):
    """`response` of an AdmissionReview."""

    uid: str
    allowed: bool
    status: NotRequired[Status]
    patchType: NotRequired[Literal["JSONPatch"]]
    patch: NotRequired[str]
    warnings: NotRequired[list[str]]


class AdmissionReview(TypedDict):
    """An answer."""

    apiVersion: str
    kind: str
    response: AdmissionResponse


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, and the word under which it is counted."""

    review: AdmissionReview
    result: str


class EnsureTemplate(Protocol):
    """Makes a template exist, or raises TemplateUnavailable."""

    def __call__(self, namespace: str, template: ClaimTemplate, *, dry_run: bool) -> None:
        """Write nothing on a dry run."""


class Reviewer:
    """Answers reviews of pod creations with the server and the inventory as they are at the moment."""

    def __init__(
        self,
        *,
        policy: Policy,
        inventory: Callable[[], Inventory],
        server: Callable[[], ServerState],
        ensure_template: EnsureTemplate,
    ) -> None:
        self._policy = policy
        self._inventory = inventory
        self._server = server
        self._ensure_template = ensure_template

    def answer(self, review: object) -> Outcome:
        """The answer to `review`. Raises InvalidInput for what is no AdmissionReview of version v1."""
        envelope = obj(review)
        for key, want in (("apiVersion", API_VERSION), ("kind", KIND)):
            if envelope.get(key) != want:
                raise InvalidInput(field=key, value=text(envelope.get(key))[:64], fix=f"want {want!r}")
        request = obj(envelope.get("request"))
        uid = text(request.get("uid"))
        if not uid:
            raise InvalidInput(field="request.uid", value="", fix="want the uid of the request")
        namespace = text(request.get("namespace"))
        if not DNS_LABEL.fullmatch(namespace):
            # Anybody in the cluster can call us, and this becomes part of a path.
            raise InvalidInput(field="request.namespace", value=namespace[:64], fix="want a namespace's name")
        return self._answer(uid, namespace, request)

    def _answer(self, uid: str, namespace: str, request: JsonObject) -> Outcome:
        is_pod = dig(request, "resource", "resource") == "pods" and not request.get("subResource")
        if not is_pod or request.get("operation") != "CREATE":
            return _allow(uid)
        server = self._server()
        policy = replace(self._policy, count_is_distinct=server.count_is_distinct)
        decision = rewrite(request.get("object"), policy, self._inventory())
        if isinstance(decision, Patch) and decision.template is not None:
            is_dry_run = request.get("dryRun") is True
            problem = server.problem or self._missing(namespace, decision.template, dry_run=is_dry_run)
            if problem is not None:
                decision = Refusal(reason=Reason.NOT_READY, message=problem)
        return _refuse(uid, decision) if isinstance(decision, Refusal) else _allow(uid, decision)

    def _missing(self, namespace: str, template: ClaimTemplate, *, dry_run: bool) -> str | None:
        """Why the template cannot be had; None once it is there."""
        try:
            self._ensure_template(namespace, template, dry_run=dry_run)
        except TemplateUnavailable as error:
            return str(error)
        return None


def _allow(uid: str, patch: Patch | None = None) -> Outcome:
    response: AdmissionResponse = {"uid": uid, "allowed": True}
    if patch is None:
        return _outcome(response, "unchanged")
    response["warnings"] = _shorten(patch.warnings)
    if not patch.operations:
        return _outcome(response, "unchanged")
    response["patchType"] = "JSONPatch"
    response["patch"] = base64.b64encode(json.dumps(patch.operations).encode()).decode()
    return _outcome(response, "patched")


def _refuse(uid: str, refusal: Refusal) -> Outcome:
    status: Status = {"code": _CODES[refusal.reason], "message": refusal.message}
    return _outcome({"uid": uid, "allowed": False, "status": status}, str(refusal.reason))


def _outcome(response: AdmissionResponse, result: str) -> Outcome:
    return Outcome(review={"apiVersion": API_VERSION, "kind": KIND, "response": response}, result=result)


def _shorten(warnings: Sequence[str]) -> list[str]:
    return [
        warning if len(warning) <= _WARNING_LENGTH else f"{warning[: _WARNING_LENGTH - 1]}…"
        for warning in warnings
    ]
