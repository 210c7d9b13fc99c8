# SPDX-License-Identifier: Apache-2.0
"""Judges what is written by hand: claims and templates for our GPUs, pods that use them, and live resizes."""

import logging
from collections.abc import Callable, Collection
from typing import Final

from aliquot_api import names, quantity
from aliquot_api.annotations import memory_limits
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_webhook import claimcheck
from aliquot_webhook.amounts import uses
from aliquot_webhook.budget import BudgetOffice
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.kube import Api, ApiError
from aliquot_webhook.policy import Policy
from aliquot_webhook.probe import ServerState
from aliquot_webhook.resizes import ANNOTATION, annotation_of, claim_names, containers_of
from aliquot_webhook.review import log_refusal
from aliquot_webhook.reviews import Notes, Outcome, Refused, Request, Result, allow, read, refuse
from aliquot_webhook.templates import ROOT

logger = logging.getLogger(__name__)

_FIXED: Final = (names.ANNOTATION_CORES, names.ANNOTATION_COMPUTE_POLICY)
"""Annotations that say nothing to a pod that runs."""
_MOST_CLAIMS: Final = 32
"""Claims of a pod that are looked at: each is a call to the API server, and the server has no such limit."""


class Validator:
    """Answers reviews that only say yes or no."""

    def __init__(
        self,
        *,
        api: Api,
        policy: Policy,
        inventory: Callable[[], Inventory],
        server: Callable[[], ServerState],
        budget: BudgetOffice,
        classes: Collection[str],
    ) -> None:
        self._api = api
        self._policy = policy
        self._inventory = inventory
        self._server = server
        self._budget = budget
        self._classes = classes

    def answer(self, review: object) -> Outcome:
        """The answer to `review`. Raises InvalidInput for what is no AdmissionReview of version v1."""
        request = read(review)
        judges: dict[tuple[str, str], Callable[[Request], Notes]] = {
            ("resourceclaims", "CREATE"): self._claim,
            ("resourceclaimtemplates", "CREATE"): self._template,
            ("pods", "CREATE"): self._pod,
            ("pods", "UPDATE"): self._resize,
        }
        judge = judges.get((request.resource, request.operation))
        if judge is None:
            return allow(request)
        try:
            return allow(request, notes=judge(request))
        except InvalidInput as error:
            refused = Refused(result=Result.INVALID, message=str(error))
        except Refused as error:
            refused = error
        log_refusal(request, refused)
        return refuse(request, refused)

    def _claim(self, request: Request) -> Notes:
        self._check_claim(request.new.get("spec"), field="spec")
        self._budget.charge(request)
        return Notes()

    def _template(self, request: Request) -> Notes:
        self._check_claim(dig(request.new, "spec", "spec"), field="spec.spec")
        self._budget.check_template(request)
        return Notes()

    def _check_claim(self, spec: object, *, field: str) -> None:
        policy = self._judging_policy()
        claimcheck.check_claim(
            spec, field=field, classes=self._classes, policy=policy, inventory=self._inventory()
        )

    def _pod(self, request: Request) -> Notes:
        """A pod with claims, some of which may be ours. What keeps us from seeing that is no reason to refuse
        it, for it may be another driver's; unless our annotation stands in it."""
        spec = obj(request.new.get("spec"))
        specs: dict[str, object] = {}
        known: dict[tuple[str, str], object] = {}
        for entry in items(spec.get("resourceClaims")):
            meant = _meant(obj(entry))
            if meant not in known:
                if len(known) == _MOST_CLAIMS:
                    break
                try:
                    known[meant] = self._spec_of(request.namespace, *meant)
                except Refused as refused:
                    logger.warning("pod is not looked at", extra={"error": refused.message})
                    break
            if known[meant] is not None:
                specs[text(obj(entry).get("name"))] = known[meant]
        claimcheck.check_pod(spec, specs, classes=self._classes, policy=self._policy)
        if annotation_of(request.new) is not None:
            self._check_first_limit(spec, specs, text(annotation_of(request.new)))
        return Notes()

    def _check_first_limit(self, spec: JsonObject, specs: dict[str, object], annotation: str) -> None:
        """The agent grows a share to what the annotation says, so a pod must not be born with more than its
        claims were checked and charged for."""
        field = f"metadata.annotations[{ANNOTATION}]"
        for entry in items(spec.get("resourceClaims")):
            name = text(obj(entry).get("name"))
            if name not in specs:
                fix = f"claim {name[:63]!r} cannot be read, so nobody can tell whether that fits; create the"
                fix += " claim or its template first, or set the annotation when the pod runs"
                raise InvalidInput(field=field, value=annotation[:64], fix=fix)
        ours: dict[str, JsonObject] = {
            name: {"spec": each} for name, each in specs.items() if uses(each, classes=self._classes)
        }
        containers = containers_of(spec, ours)
        limits = memory_limits(annotation, field=field, containers=list(containers)) if containers else {}
        for container, limit_bytes in limits.items():
            for name, request_name in containers[container]:
                most = claimcheck.stated_memory(specs[name], classes=self._classes).get(request_name)
                if most is not None and limit_bytes > most:
                    raise InvalidInput(
                        field=field,
                        value=annotation[:64],
                        fix=f"the claim of container {container} asks for {most // quantity.MIB}Mi; ask for"
                        " more there, or set the annotation when the pod runs",
                    )

    def _spec_of(self, namespace: str, plural: str, name: str) -> object:
        """Spec of a claim, or of the claims that a template makes; None if it is not there (yet)."""
        spec = dig(self._get(namespace, plural, name), "spec")
        return dig(spec, "spec") if plural == "resourceclaimtemplates" else spec

    def _resize(self, request: Request) -> Notes:
        """A new memory limit for a running pod; how it shares a GPU's time stays what its claim says."""
        old, new = (annotation_of(pod) for pod in (request.old, request.new))
        fixed = [key for key in _FIXED if annotation_of(request.old, key) != annotation_of(request.new, key)]
        if old == new and not fixed:
            return Notes()
        claims = self._our_claims(request)
        for key in fixed if claims else ():
            raise InvalidInput(
                field=f"metadata.annotations[{key}]",
                value=(annotation_of(request.new, key) or "")[:64],
                fix="the pod was placed by what this said, and that counts for as long as it runs;"
                " put it back, and make a new pod to change it",
            )
        if old == new:
            return Notes()
        containers = containers_of(obj(request.new.get("spec")), claims)
        if not claims:
            return Notes()
        field = f"metadata.annotations[{ANNOTATION}]"
        limits = {} if new is None else memory_limits(new, field=field, containers=list(containers))
        largest = self._inventory().largest
        memory: dict[str, dict[str, int]] = {name: {} for name in claims}
        for container, limit_bytes in limits.items():
            if largest is not None and limit_bytes > largest.memory_bytes:
                raise InvalidInput(
                    field=field,
                    value=f"{limit_bytes // quantity.MIB}Mi",
                    fix=f"no GPU of this cluster is that large; the largest, {largest.product or 'unnamed'},"
                    f" has {largest.memory_bytes // quantity.MIB}Mi",
                )
            for name, request_name in containers[container]:
                spec = claims[name].get("spec")
                if request_name in claimcheck.whole_requests(spec, classes=self._classes):
                    raise InvalidInput(
                        field=field,
                        value=container,
                        fix="this container has a whole GPU, which no limit makes smaller or larger; leave it"
                        " out (container=value, …)",
                    )
                memory[name][request_name] = max(limit_bytes, memory[name].get(request_name, 0))
        self._judging_policy()
        self._budget.resize(request, [(claims[name], memory[name]) for name in claims])
        return Notes(audit={"resize": "accepted"})

    def _our_claims(self, request: Request) -> dict[str, JsonObject]:
        """The pod's claims for our GPUs, by the pod's own names for them."""
        found: dict[str, JsonObject] = {}
        known: dict[str, JsonObject | None] = {}
        for name, claim_name in claim_names(request.old).items():
            if claim_name not in known:
                if len(known) == _MOST_CLAIMS:
                    fix = f"of a pod with more than {_MOST_CLAIMS} claims no limit can be changed"
                    raise InvalidInput(field="spec.resourceClaims", value=name[:63], fix=fix)
                known[claim_name] = self._get(request.namespace, "resourceclaims", claim_name)
            claim = known[claim_name]
            if claim is not None and uses(claim.get("spec"), classes=self._classes):
                found[name] = claim
        return found

    def _get(self, namespace: str, plural: str, name: str) -> JsonObject | None:
        if not name:
            return None
        try:
            return self._api.call("GET", f"{ROOT}/namespaces/{namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            message = f"Aliquot's webhook cannot read {plural} {namespace}/{name}: {error.message}"
            raise Refused(result=Result.NOT_READY, message=message) from error

    def _judging_policy(self) -> Policy:
        server = self._server()
        if server.problem is not None:
            raise Refused(result=Result.NOT_READY, message=server.problem)
        return self._policy.on(count_is_distinct=server.count_is_distinct)


def _meant(entry: JsonObject) -> tuple[str, str]:
    """Kind and name of what an entry of a pod's claims refers to."""
    template = text(entry.get("resourceClaimTemplateName"))
    if template:
        return "resourceclaimtemplates", template
    return "resourceclaims", text(entry.get("resourceClaimName"))
