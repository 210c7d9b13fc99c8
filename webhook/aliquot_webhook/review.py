# SPDX-License-Identifier: Apache-2.0
"""Judges pods: at their creation `rewrite` decides, then the template is made and the budget asked."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from aliquot_api.wire import JsonObject, dig, items, obj
from aliquot_webhook.budget import BudgetOffice
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.probe import ServerState
from aliquot_webhook.reviews import Notes, Outcome, Refused, Request, Result, allow, read, refuse
from aliquot_webhook.rewrite import Patch, Reason, Refusal, rewrite
from aliquot_webhook.templates import TemplateUnavailable
from aliquot_webhook.update import restore

logger = logging.getLogger(__name__)

_RESULTS = {Reason.INVALID: Result.INVALID, Reason.NOT_READY: Result.NOT_READY}


class EnsureTemplate(Protocol):
    """Makes a template exist, or raises TemplateUnavailable."""

    def __call__(self, namespace: str, template: ClaimTemplate, *, dry_run: bool) -> None:
        """Write nothing on a dry run."""


class Reviewer:
    """Answers reviews of pods with the server and the inventory as they are at the moment."""

    def __init__(
        self,
        *,
        policy: Policy,
        inventory: Callable[[], Inventory],
        server: Callable[[], ServerState],
        ensure_template: EnsureTemplate,
        budget: BudgetOffice,
    ) -> None:
        self._policy = policy
        self._inventory = inventory
        self._server = server
        self._ensure_template = ensure_template
        self._budget = budget

    def answer(self, review: object) -> Outcome:
        """The answer to `review`. Raises InvalidInput for what is no AdmissionReview of version v1."""
        request = read(review)
        try:
            return self._answer(request)
        except Refused as refused:
            log_refusal(request, refused)
            return refuse(request, refused)

    def _answer(self, request: Request) -> Outcome:
        if request.resource != "pods" or request.operation not in ("CREATE", "UPDATE"):
            return allow(request)
        server = self._server()
        policy = self._policy.on(
            count_is_distinct=server.count_is_distinct,
            is_budgeted=self._budget.counts(request.namespace),
        )
        if request.operation == "CREATE":
            decision = rewrite(request.new, policy, self._inventory())
        else:
            decision = restore(request.new, request.old, policy)
        if decision is None:
            return allow(request)
        if isinstance(decision, Refusal):
            raise Refused(result=_RESULTS[decision.reason], message=decision.message)
        if decision.templates and request.operation == "CREATE":
            if server.problem is not None:
                raise Refused(result=Result.NOT_READY, message=server.problem)
            self._have(request, decision)
        names = ",".join(template.name for template in decision.templates)
        audit = {"templates": names} if names else {}
        return allow(request, decision.operations, Notes(warnings=decision.warnings, audit=audit))

    def _have(self, request: Request, decision: Patch) -> None:
        """See to it that everything the pod will name is there, and paid for."""
        for template in decision.templates:
            try:
                self._ensure_template(request.namespace, template, dry_run=request.is_dry_run)
            except TemplateUnavailable as error:
                raise Refused(result=Result.NOT_READY, message=str(error)) from error
        self._budget.reserve(
            request,
            [template.spec for template in decision.templates],
            is_again=_names_all(request.new, decision.templates),
        )


def _names_all(pod: JsonObject, templates: Sequence[ClaimTemplate]) -> bool:
    """Whether the pod carries these claims already: it comes a second time, or is a copy."""
    present = {
        obj(claim).get("resourceClaimTemplateName") for claim in items(dig(pod, "spec", "resourceClaims"))
    }
    return all(template.name in present for template in templates)


def log_refusal(request: Request, refused: Refused) -> None:
    """For the operator: what was refused and why, without what stands in it."""
    logger.info(
        "refused",
        extra={
            "namespace": request.namespace,
            "resource": request.resource,
            "operation": request.operation,
            "review": request.uid,
            "reason": refused.result,
        },
    )
