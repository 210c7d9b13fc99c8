# SPDX-License-Identifier: Apache-2.0
"""The AdmissionReview protocol (admission.k8s.io/v1): what is asked, and the forms of an answer."""

import base64
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NotRequired, TypedDict

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, obj, text
from aliquot_webhook.checks import DNS_LABEL

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
_WARNING_LENGTH: Final = 256
"""The API server truncates longer warnings."""


class Result(enum.StrEnum):
    """How a review ended: a metric label, and the code of a refusal."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    INVALID = "invalid"
    BUDGET = "budget"
    BUSY = "busy"
    NOT_READY = "not_ready"


_CODES: Final = {Result.INVALID: 400, Result.BUDGET: 403, Result.BUSY: 429, Result.NOT_READY: 503}


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
    auditAnnotations: NotRequired[dict[str, str]]


class AdmissionReview(TypedDict):
    """An answer."""

    apiVersion: str
    kind: str
    response: AdmissionResponse


@dataclass(frozen=True, slots=True)
class Request:
    """What the API server asks about."""

    uid: str
    namespace: str
    resource: str
    """Plural, of pods and of resource.k8s.io; empty for a subresource, which is never ours."""
    operation: str
    new: JsonObject
    old: JsonObject
    user: str
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, and the word under which it is counted."""

    review: AdmissionReview
    result: Result


class Refused(Exception):
    """The request must not go through; `message` is for its author."""

    def __init__(self, *, result: Result, message: str) -> None:
        super().__init__(message)
        self.result = result
        self.message = message


@dataclass(frozen=True, slots=True)
class Notes:
    """What is said beside yes and no."""

    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    """Written into the API server's audit log."""


def read(review: object) -> Request:
    """Raises InvalidInput for what is no AdmissionReview of version v1."""
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
    resource = "" if request.get("subResource") else text(dig(request, "resource", "resource"))
    return Request(
        uid=uid,
        namespace=namespace,
        resource=resource,
        operation=text(request.get("operation")),
        new=obj(request.get("object")),
        old=obj(request.get("oldObject")),
        user=text(dig(request, "userInfo", "username")),
        is_dry_run=request.get("dryRun") is True,
    )


def allow(request: Request, operations: Sequence[object] = (), notes: Notes = Notes()) -> Outcome:  # frozen
    """Yes, with a patch if there are operations."""
    response: AdmissionResponse = {"uid": request.uid, "allowed": True}
    if notes.warnings:
        response["warnings"] = [_shorten(warning) for warning in notes.warnings]
    if notes.audit:
        response["auditAnnotations"] = dict(notes.audit)
    if not operations:
        return _outcome(response, Result.UNCHANGED)
    response["patchType"] = "JSONPatch"
    response["patch"] = base64.b64encode(json.dumps(operations).encode()).decode()
    return _outcome(response, Result.PATCHED)


def refuse(request: Request, refused: Refused) -> Outcome:
    """No."""
    status: Status = {"code": _CODES[refused.result], "message": refused.message}
    response: AdmissionResponse = {
        "uid": request.uid,
        "allowed": False,
        "status": status,
        "auditAnnotations": {"refused": refused.result},
    }
    return _outcome(response, refused.result)


def _outcome(response: AdmissionResponse, result: Result) -> Outcome:
    return Outcome(review={"apiVersion": API_VERSION, "kind": KIND, "response": response}, result=result)


def _shorten(warning: str) -> str:
    return warning if len(warning) <= _WARNING_LENGTH else f"{warning[: _WARNING_LENGTH - 1]}…"
