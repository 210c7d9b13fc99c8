# SPDX-License-Identifier: Apache-2.0
"""Asks a namespace's budget at admission. Where there is none it costs nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, text
from aliquot_webhook import ledger
from aliquot_webhook.amounts import Amounts, of_claim, uses
from aliquot_webhook.budgets import Budgets, Cap
from aliquot_webhook.charges import ChargeBusy, Charges, ChargeUnavailable
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.ledger import BudgetExceeded
from aliquot_webhook.reviews import Refused, Request, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOffice:
    """The budgets of all namespaces, and the ledgers in which they are counted. Raises Refused for a no."""

    budgets: Budgets
    charges: Charges
    inventory: Callable[[], Inventory]
    classes: Collection[str]
    claim_makers: Collection[str]
    """Users as which kube-controller-manager makes the claims of pods."""

    def counts(self, namespace: str) -> bool:
        """Whether there is a budget."""
        return bool(self.budgets.caps(namespace))

    def reserve(self, request: Request, specs: Sequence[object], *, is_again: bool) -> None:
        """For a pod that will have claims of `specs`, one reservation for each."""
        caps = self.budgets.caps(request.namespace)
        if caps and specs:
            wanted = [self._amounts(spec) for spec in specs]
            self._ask(
                lambda: self.charges.reserve(
                    request.namespace, wanted, caps, is_again=is_again, dry_run=request.is_dry_run
                )
            )

    def charge(self, request: Request) -> None:
        """For a claim."""
        caps = self.budgets.caps(request.namespace)
        spec = request.new.get("spec")
        if caps and uses(spec, classes=self.classes):
            wanted = self._amounts(spec)
            self._ask(
                lambda: self.charges.charge(
                    request.namespace,
                    request.new,
                    wanted,
                    caps,
                    may_redeem=request.user in self.claim_makers,
                    dry_run=request.is_dry_run,
                )
            )

    def check_template(self, request: Request) -> None:
        """For a template, which takes nothing: but a claim from it must fit into an empty namespace."""
        caps = self.budgets.caps(request.namespace)
        if caps:
            wanted = self._amounts(dig(request.new, "spec", "spec"))
            self._ask(lambda: ledger.reserve({}, "", wanted, caps=caps, now_s=0.0, is_again=False))

    def resize(self, request: Request, claims: Collection[tuple[JsonObject, Mapping[str, int]]]) -> None:
        """For claims of a running pod, each with the new memory of its requests."""
        caps: tuple[Cap, ...] = self.budgets.caps(request.namespace)
        if not caps:
            return
        wanted = {
            text(dig(claim, "metadata", "uid")): self._amounts(claim.get("spec"), memory)
            for claim, memory in claims
        }
        self._ask(lambda: self.charges.resize(request.namespace, wanted, caps, dry_run=request.is_dry_run))

    def _amounts(self, spec: object, memory: Mapping[str, int] | None = None) -> Amounts:
        largest = self.inventory().largest
        whole_bytes = None if largest is None else largest.memory_bytes
        try:
            return of_claim(spec, classes=self.classes, whole_bytes=whole_bytes, memory=memory)
        except InvalidInput as error:
            raise Refused(result=Result.BUDGET, message=str(error)) from error

    def _ask(self, question: Callable[[], object]) -> None:
        try:
            question()
        except BudgetExceeded as error:
            raise Refused(result=Result.BUDGET, message=str(error)) from error
        except ChargeBusy as error:
            raise Refused(result=Result.BUSY, message=str(error)) from error
        except ChargeUnavailable as error:
            raise Refused(result=Result.NOT_READY, message=str(error)) from error
