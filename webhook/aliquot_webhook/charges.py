# SPDX-License-Identifier: Apache-2.0
"""Keeps the ledger of each namespace with a budget on the API server, by compare and swap.

Every change names the resourceVersion that it was computed from, so that of two replicas one has to compute
anew: no order of admissions promises more than there is. A replica begins with the ledger as it last wrote
it, which costs one call for an admission, or for all that wait at the same moment; when that leads to a
refusal, or another replica writes as well, it reads first.

The first admission after a budget appears makes the ledger from the claims that there are.
"""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, only, text
from aliquot_webhook import amounts, ledger
from aliquot_webhook.amounts import Amounts
from aliquot_webhook.budgets import Cap
from aliquot_webhook.kube import ApiError, Keep, ListApi
from aliquot_webhook.ledger import Book, BudgetExceeded, Entries, Entry
from aliquot_webhook.pace import Pace
from aliquot_webhook.templates import ROOT, parse_timestamp

LEDGERS: Final = f"/apis/{names.CONFIG_GROUP}/{names.CONFIG_VERSION}"
NAME: Final = "gpu"
"""Of the one AliquotLedger in a namespace."""
_WAIT_S: Final = 4.0
_LAST_WAIT_S: Final = 0.5
"""Together less than the 5 s of the webhook configuration, so that the author gets our words."""
_PATIENCE_S: Final = 0.02
"""How long a claim of kube-controller-manager's waits for company: nobody waits for it, and the pods that are
admitted meanwhile take it along, instead of waiting for a write of its own."""
_ATTEMPTS: Final = 16

Change = Callable[[Entries], Entries]


class ChargeUnavailable(Exception):
    """The ledger cannot be read or written, so nothing may be admitted; the text says why."""


class ChargeBusy(ChargeUnavailable):
    """Too many want to be counted at once: the same may be asked again."""


@dataclass(frozen=True, slots=True)
class _Ledger:
    version: str
    """Empty: there is none yet."""
    entries: Entries


class _Wish:
    """A change that a thread waits for."""

    def __init__(self, change: Change, *, until_s: float, is_patient: bool = False) -> None:
        self.change = change
        self.is_patient = is_patient
        """It begins no write of its own yet."""
        self.until_s = until_s
        """Then its API server has given up: what is written later is charged for nothing."""
        self.woken = threading.Event()
        """It has ended, or its thread has to write for all who wait."""
        self._outcome: Book | Exception | None = None

    def end(self, outcome: Book | Exception) -> None:
        """It has come true, or never will."""
        self._outcome = outcome
        self.woken.set()

    @property
    def ended(self) -> bool:
        """Whether it is known how it ends."""
        return self._outcome is not None

    def outcome(self) -> Book:
        """The entries after it. Raises what prevented it."""
        if isinstance(self._outcome, Book):
            return self._outcome
        raise self._outcome or ChargeUnavailable("nobody has looked at the GPU budget; try again")


class _Queue:
    """Who waits for one namespace's ledger. Of those one writes for all, and then wakes the next."""

    def __init__(self) -> None:
        self.waiting: list[_Wish] = []
        self.writes = False
        """Somebody is writing, or has been woken to write."""
        self.pace = Pace()

    def begin(self, wish: _Wish) -> None:
        """Let the thread of `wish` write for all who wait, unless somebody does."""
        if not self.writes:
            self.writes = True
            wish.woken.set()

    def go_on(self) -> None:
        """A write is over: the next one's turn."""
        self.writes = False
        following = next((wish for wish in self.waiting if not wish.is_patient), None)
        if following is not None:
            self.begin(following)


def ledger_path(namespace: str) -> str:
    """Where a namespace's ledger is."""
    return f"{LEDGERS}/namespaces/{namespace}/aliquotledgers/{NAME}"


def our_claims(classes: Collection[str]) -> Keep:
    """What counts of claims for GPUs of `classes`: all that is read here and in `amounts`."""

    def keep(claim: JsonObject) -> JsonObject | None:
        if not amounts.uses(claim.get("spec"), classes=classes):
            return None
        about = ("name", "uid", "creationTimestamp")
        return only(claim, metadata=about, spec=("devices",), status=("allocation", "devices"))

    return keep


def claim_entries(
    claims: Collection[JsonObject], *, classes: Collection[str], whole_bytes: int | None
) -> dict[str, Entry]:
    """What existing claims count as, at least: the most that they can get, or have."""
    found: dict[str, Entry] = {}
    for claim in claims:
        spec = claim.get("spec")
        if amounts.uses(spec, classes=classes):
            created = parse_timestamp(dig(claim, "metadata", "creationTimestamp"))
            most = amounts.of_claim(spec, classes=classes, whole_bytes=whole_bytes or 0)
            found[text(dig(claim, "metadata", "uid"))] = Entry(
                amounts=most | amounts.of_allocation(claim) | amounts.in_force(claim, classes=classes),
                at_s=created.timestamp() if created else 0.0,
            )
    return found


class Charges:
    """The ledgers of all namespaces. Safe to use from many threads."""

    def __init__(
        self,
        *,
        api: ListApi,
        classes: Collection[str],
        whole_bytes: Callable[[], int | None],
        reservation_s: float,
        wait_s: float = _WAIT_S,
        patience_s: float = _PATIENCE_S,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._api = api
        self._classes = classes
        self._whole_bytes = whole_bytes
        self._reservation_s = reservation_s
        self._now_s = now_s
        self._known: dict[str, _Ledger] = {}
        self._shared: set[str] = set()
        """Where another replica writes as well: what we know is old by the time that we write again."""
        self._queues: dict[str, _Queue] = {}
        self._guard = threading.Lock()

    def reserve(
        self,
        namespace: str,
        wanted: Sequence[Amounts],
        caps: Collection[Cap],
        *,
        is_again: bool,
        dry_run: bool,
    ) -> None:
        """For each claim of a pod that is being admitted, all or none. Raises BudgetExceeded,
        ChargeUnavailable."""
        keyed = [(uuid.uuid4().hex[:16], each) for each in wanted]

        def change(entries: Entries) -> Entries:
            for key, each in keyed:
                entries = ledger.reserve(
                    entries, key, each, caps=caps, now_s=self._now_s(), is_again=is_again
                )
            return entries

        self.change(namespace, change, dry_run=dry_run)

    def charge(
        self,
        namespace: str,
        claim: JsonObject,
        wanted: Amounts,
        caps: Collection[Cap],
        *,
        may_redeem: bool,
        dry_run: bool,
    ) -> None:
        """For a claim that is being admitted. Raises BudgetExceeded, ChargeUnavailable."""
        uid = text(dig(claim, "metadata", "uid"))
        if not uid.isprintable():  # it will stand in a line; no API server sends such a thing
            raise InvalidInput(field="metadata.uid", value=uid[:64], fix="want a UID")
        self.change(
            namespace,
            lambda entries: ledger.charge(
                entries, uid, wanted, caps=caps, now_s=self._now_s(), may_redeem=may_redeem
            ),
            dry_run=dry_run,
            patience_s=self._patience_s if may_redeem else 0.0,
        )

    def resize(
        self, namespace: str, wanted: Mapping[str, Amounts], caps: Collection[Cap], *, dry_run: bool
    ) -> None:
        """For claims by UID whose limits change, all or none. Raises BudgetExceeded, ChargeUnavailable."""

        def change(entries: Entries) -> Entries:
            for uid, amounts_wanted in wanted.items():
                entries = ledger.resize(entries, uid, amounts_wanted, caps=caps, now_s=self._now_s())
            return entries

        self.change(namespace, change, dry_run=dry_run)

    def change(
        self, namespace: str, change: Change, *, dry_run: bool = False, patience_s: float = 0.0
    ) -> Book:
        """Bring about `change` of the namespace's entries, together with the next change or after
        `patience_s`; the entries after it."""
        wish = _Wish(change, until_s=self._clock() + self._wait_s, is_patient=patience_s > 0)
        if dry_run:
            self._settle(namespace, [wish], dry_run=True)
            return wish.outcome()
        with self._guard:
            queue = self._queues.setdefault(namespace, _Queue())
            queue.waiting.append(wish)
            if not wish.is_patient:
                queue.begin(wish)
        if wish.is_patient and not wish.woken.wait(patience_s):
            with self._guard:
                wish.is_patient = False
                if wish in queue.waiting:
                    queue.begin(wish)
        if not wish.woken.wait(self._wait_s):
            with self._guard:
                if wish in queue.waiting and not wish.woken.is_set():
                    queue.waiting.remove(wish)
                    raise _busy(namespace)
            if not wish.woken.wait(_LAST_WAIT_S):  # somebody is just writing it
                raise _busy(namespace)
        if not wish.ended:
            self._write_for_all(namespace, queue)
        return wish.outcome()

    def _write_for_all(self, namespace: str, queue: _Queue) -> None:
        """One write for everybody who waits, this thread among them; then the next one's turn.

        Before it rests as `Pace` says, so that another replica gets its turn; meanwhile more come to wait,
        who are served by one write.
        """
        rest_s = queue.pace.rests_until_s - self._clock()
        if rest_s > 0:
            time.sleep(rest_s)
        with self._guard:
            wishes, queue.waiting = queue.waiting, []
        began_s = self._clock()
        try:
            self._settle(namespace, wishes)
        finally:
            queue.pace.wrote(began_s=began_s, ended_s=self._clock(), is_shared=namespace in self._shared)
            for wish in wishes:
                if not wish.ended:
                    wish.end(_busy(namespace))
            with self._guard:
                queue.go_on()

    def _settle(self, namespace: str, wishes: Sequence[_Wish], *, dry_run: bool = False) -> None:
        """Make all of them come true in one write, or say why not."""
        try:
            self._try_to_settle(namespace, wishes, dry_run=dry_run)
        except ApiError as error:
            self._known.pop(namespace, None)
            again = "" if error.status else "; try again"
            for wish in wishes:
                wish.end(
                    ChargeUnavailable(
                        f"the GPU budget of namespace {namespace} cannot be counted: {error.message}{again}"
                    )
                )

    def _try_to_settle(self, namespace: str, wishes: Sequence[_Wish], *, dry_run: bool) -> None:
        last = self._known.get(namespace)
        known = None if dry_run or namespace in self._shared else last
        for _ in range(_ATTEMPTS):
            wishes = self._in_time(namespace, wishes)
            if not wishes:
                return
            before = known or self._read(namespace)
            if last is not None and before.version == last.version:
                self._shared.discard(namespace)
            entries = ledger.current(before.entries, now_s=self._now_s(), reservation_s=self._reservation_s)
            outcomes: list[Book | BudgetExceeded] = []
            for wish in wishes:
                try:
                    entries = ledger.book(wish.change(entries))
                    outcomes.append(entries)
                except BudgetExceeded as error:
                    outcomes.append(error)
            if known is not None and any(isinstance(each, BudgetExceeded) for each in outcomes):
                known = None  # nobody is refused for what an old copy says
                continue
            if not dry_run and entries != before.entries:
                try:
                    self._write(namespace, before, entries)
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise
                    known = None
                    self._shared.add(namespace)
                    continue
            for wish, outcome in zip(wishes, outcomes, strict=True):
                wish.end(outcome)
            return
        for wish in wishes:
            wish.end(ChargeBusy(f"the GPU budget of namespace {namespace} keeps changing; try again"))

    def _in_time(self, namespace: str, wishes: Sequence[_Wish]) -> Sequence[_Wish]:
        """Those for which it is not too late; the others end."""
        now_s = self._clock()
        for wish in wishes:
            if now_s > wish.until_s:
                wish.end(_busy(namespace))
        return [wish for wish in wishes if now_s <= wish.until_s]

    def _read(self, namespace: str) -> _Ledger:
        try:
            live = self._api.call("GET", ledger_path(namespace))
        except ApiError as error:
            if error.status != 404:
                raise
            path = f"{ROOT}/namespaces/{namespace}/resourceclaims"
            claims, _ = self._api.list_all(path, {}, our_claims(self._classes))
            entries = claim_entries(claims, classes=self._classes, whole_bytes=self._whole_bytes())
            return _Ledger(version="", entries=entries)
        return _Ledger(version=text(dig(live, "metadata", "resourceVersion")), entries=ledger.decode(live))

    def _write(self, namespace: str, before: _Ledger, after: Entries) -> None:
        body: dict[str, object] = {
            "apiVersion": f"{names.CONFIG_GROUP}/{names.CONFIG_VERSION}",
            "kind": "AliquotLedger",
            "metadata": {"name": NAME, "namespace": namespace},
            "entries": ledger.encode(after),
        }
        path = ledger_path(namespace)
        if before.version:
            body["metadata"] = {"name": NAME, "namespace": namespace, "resourceVersion": before.version}
            live = self._api.call("PUT", path, body=body)
        else:
            live = self._api.call("POST", path.rpartition("/")[0], body=body)
        self._known[namespace] = _Ledger(
            version=text(dig(live, "metadata", "resourceVersion")), entries=after
        )


def _busy(namespace: str) -> ChargeBusy:
    return ChargeBusy(f"the GPU budget of namespace {namespace} is busy; try again")
