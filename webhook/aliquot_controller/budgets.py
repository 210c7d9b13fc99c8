# SPDX-License-Identifier: Apache-2.0
"""Keeps the ledgers of budgets in line with the claims that there are, and shows their state.

Webhooks only add to a ledger. Here entries go: at once for a claim whose deletion was seen, and by comparison
with a fresh list for one that never appeared. Claims that were made before the budget are added, and what a
claim was really given (`consumedCapacity`) counts where it is more than what was promised.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api.wire import JsonObject, dig, obj, text
from aliquot_webhook import ledger
from aliquot_webhook.amounts import Amounts, Thing, of_allocation, of_claim
from aliquot_webhook.budgets import Budgets, Cap
from aliquot_webhook.charges import (
    LEDGERS,
    Charges,
    ChargeUnavailable,
    claim_entries,
    ledger_path,
    our_claims,
)
from aliquot_webhook.kube import MERGE_PATCH, ApiError, ListApi
from aliquot_webhook.ledger import Book, Entries, Entry
from aliquot_webhook.resizes import annotation_of, wishes
from aliquot_webhook.templates import ROOT

logger = logging.getLogger(__name__)

_QUIET_S: Final = 120.0
"""A ledger in a namespace without a budget is deleted when it has not changed for this time: a webhook may
know of a new budget before we do."""


@dataclass(frozen=True, slots=True)
class Usage:
    """State of one namespace's budget."""

    caps: tuple[Cap, ...]
    used: Amounts
    """Promised."""
    consumed: Amounts
    """Allocated by the scheduler."""


class BudgetKeeper:
    """Everything about budgets that is no admission. `gone` may be called from any thread."""

    def __init__(
        self,
        *,
        api: ListApi,
        budgets: Budgets,
        charges: Charges,
        classes: Collection[str],
        whole_bytes: Callable[[], int | None],
        in_flight_s: float,
        show: Callable[[dict[str, Usage]], None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._budgets = budgets
        self._charges = charges
        self._classes = classes
        self._whole_bytes = whole_bytes
        self._in_flight_s = in_flight_s
        self._show = show
        self._now_s = now_s
        self._gone: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._quiet: dict[str, tuple[str, float]] = {}

    def gone(self, namespace: str, uid: str) -> None:
        """A claim was deleted."""
        if self._budgets.caps(namespace):
            with self._lock:
                self._gone.setdefault(namespace, set()).add(uid)

    def release(self) -> None:
        """Give back what the claims had that are gone. What does not work now is left to `reconcile`."""
        with self._lock:
            gone, self._gone = self._gone, {}
        for namespace, uids in gone.items():

            def without(entries: Entries, uids: set[str] = uids) -> Book:
                return ledger.book(entries).but(without=uids & entries.keys())

            try:
                self._charges.change(namespace, without)
            except ChargeUnavailable as error:
                _tell(namespace, error)

    def forget(self) -> None:
        """Another controller leads: it has seen the same."""
        with self._lock:
            self._gone.clear()

    def reconcile(self) -> None:
        """Compare every budget with what there is. Raises ApiError; but a namespace whose ledger cannot be
        written (it is too large, or the namespace ends) keeps nobody else waiting."""
        namespaces = self._budgets.namespaces()
        usages: dict[str, Usage] = {}
        for namespace in namespaces:
            try:
                usages[namespace] = self._reconcile(namespace)
            except ChargeUnavailable as error:
                _tell(namespace, error)
        self._show(usages)
        for budget in self._api.list_all(f"{LEDGERS}/aliquotbudgets", {})[0]:
            usage = usages.get(text(dig(budget, "metadata", "namespace")))
            if usage is not None:
                self._write_status(budget, usage)
        self._delete_unused(namespaces)

    def _reconcile(self, namespace: str) -> Usage:
        path = f"{ROOT}/namespaces/{namespace}/resourceclaims"
        ours, _ = self._api.list_all(path, {}, our_claims(self._classes))
        there = claim_entries(ours, classes=self._classes, whole_bytes=self._whole_bytes())
        entries = self._charges.change(
            namespace,
            lambda entries: ledger.reconcile(
                entries, there, now_s=self._now_s(), in_flight_s=self._in_flight_s
            ),
        )
        grown = {
            uid for uid, entry in there.items() if entries[uid].amounts.memory > entry.amounts.memory
        } & {text(dig(claim, "metadata", "uid")) for claim in ours if dig(claim, "status", "allocation")}
        if grown:
            needed = self._needed(namespace, ours, there)
            entries = self._charges.change(
                namespace,
                lambda entries: ledger.shrink(
                    entries,
                    {uid: needed[uid] for uid in grown},
                    now_s=self._now_s(),
                    in_flight_s=self._in_flight_s,
                ),
            )
        consumed = Amounts()
        for claim in ours:
            consumed += of_allocation(claim)
        return Usage(caps=self._budgets.caps(namespace), used=ledger.total(entries), consumed=consumed)

    def _needed(
        self, namespace: str, claims: Sequence[JsonObject], there: Mapping[str, Entry]
    ) -> dict[str, Amounts]:
        """What claims count as by UID, with the limits that pods wish at present."""
        pods, _ = self._api.list_all(f"/api/v1/namespaces/{namespace}/pods", {}, _with_wishes)
        wished = wishes(pods, {text(dig(claim, "metadata", "name")): claim for claim in claims})
        needed: dict[str, Amounts] = {}
        for claim in claims:
            name, uid = (text(dig(claim, "metadata", key)) for key in ("name", "uid"))
            most = of_claim(
                claim.get("spec"),
                classes=self._classes,
                whole_bytes=self._whole_bytes() or 0,
                memory=wished.get(name),
            )
            needed[uid] = there[uid].amounts | most
        return needed

    def _write_status(self, budget: JsonObject, usage: Usage) -> None:
        wanted = {
            kind: {str(thing): _written(thing, amounts.of(thing)) for thing in Thing}
            for kind, amounts in (("used", usage.used), ("consumed", usage.consumed))
        }
        if {key: obj(dig(budget, "status")).get(key) for key in wanted} == wanted:
            return
        namespace, name = (text(dig(budget, "metadata", key)) for key in ("namespace", "name"))
        path = f"{LEDGERS}/namespaces/{namespace}/aliquotbudgets/{name}/status"
        try:
            self._api.call("PATCH", path, body={"status": wanted}, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise

    def _delete_unused(self, namespaces: Sequence[str]) -> None:
        quiet: dict[str, tuple[str, float]] = {}
        for found in self._api.list_all(f"{LEDGERS}/aliquotledgers", {})[0]:
            namespace = text(dig(found, "metadata", "namespace"))
            version = text(dig(found, "metadata", "resourceVersion"))
            if namespace in namespaces:
                continue
            known = self._quiet.get(namespace, ("", 0.0))
            quiet[namespace] = known if known[0] == version else (version, self._now_s())
            if self._now_s() - quiet[namespace][1] > _QUIET_S:
                preconditions = {"uid": dig(found, "metadata", "uid"), "resourceVersion": version}
                body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
                try:
                    self._api.call("DELETE", ledger_path(namespace), body=body)
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise
        self._quiet = quiet


class ClaimSink:
    """The watch on claims, of which only deletions matter here."""

    def __init__(self, *, gone: Callable[[str, str], None]) -> None:
        self._gone = gone

    def replace(self, objects: Sequence[JsonObject]) -> None:
        """These are all."""

    def upsert(self, changed: JsonObject) -> None:
        """This one is new or different."""

    def remove(self, gone: JsonObject) -> None:
        """This one is gone."""
        self._gone(text(dig(gone, "metadata", "namespace")), text(dig(gone, "metadata", "uid")))


def _with_wishes(pod: JsonObject) -> JsonObject | None:
    """Pods whose annotation says something about limits."""
    return None if annotation_of(pod) is None else pod


def _tell(namespace: str, error: ChargeUnavailable) -> None:
    logger.warning("budget is not compared", extra={"namespace": namespace, "error": str(error)})


def series(usages: dict[str, Usage]) -> dict[tuple[str, str, str], int]:
    """Metric values by namespace, resource and kind."""
    values: dict[tuple[str, str, str], int] = {}
    for namespace, usage in usages.items():
        for thing in Thing:
            values[(namespace, thing, "used")] = usage.used.of(thing)
            values[(namespace, thing, "consumed")] = usage.consumed.of(thing)
        for cap in usage.caps:
            key = (namespace, cap.thing, "limit")
            values[key] = min(cap.limit, values.get(key, cap.limit))
    return values


def _written(thing: Thing, amount: int) -> str:
    """As a Kubernetes quantity."""
    return ledger.shown(thing, amount) if thing is Thing.MEMORY else str(amount)
