# SPDX-License-Identifier: Apache-2.0
"""What is promised in a namespace: an entry for each claim, and a reservation for each pod on its way.

Pure functions over the entries of one AliquotLedger; `charges` keeps them on the API server. A claim's entry
is made at its admission, under its UID. A pod that we give a claim has a reservation from its admission until
kube-controller-manager makes that claim, which then takes over a reservation of the same amounts, whosever:
all of them are equal. So no annotation, no owner and no name has to be believed, and each claim is counted
once.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from aliquot_api import quantity
from aliquot_api.wire import JsonObject, text
from aliquot_webhook.amounts import Amounts, Thing
from aliquot_webhook.budgets import Cap
from aliquot_webhook.values import value

RESERVATION: Final = "reservation-"
"""Prefix of the keys of reservations; no UID begins so."""
_SAME_REQUEST_S: Final = 10.0
"""The API server calls a webhook twice for one request (reinvocation) within its time-out."""

_NOTHING: Final = Amounts()
_NO_ENTRIES: Final[Mapping[str, "Entry"]] = {}


class BudgetExceeded(Exception):
    """The namespace has not so much left; the text says of what, and how much there is."""


@value
class Entry:
    """Something promised."""

    amounts: Amounts
    at_s: float
    """When, in seconds since 1970."""


Entries: TypeAlias = Mapping[str, Entry]


class Book(dict[str, Entry]):
    """Entries that know their sum: of thousands it is not computed anew for each admission. Not changed once
    it is made."""

    def __init__(self, entries: Entries, *, total: Amounts | None = None) -> None:
        super().__init__(entries)
        self.total = _sum(self.values()) if total is None else total

    def but(self, *, put: Entries = _NO_ENTRIES, without: Iterable[str] = ()) -> "Book":
        """The same with other entries in it."""
        changed = Book(self, total=self.total)
        for key in without:
            changed.total += changed.pop(key).amounts * -1
        for key, entry in put.items():
            if key in changed:
                changed.total += changed[key].amounts * -1
            changed[key] = entry
            changed.total += entry.amounts
        return changed


def total(entries: Entries) -> Amounts:
    """All that is promised."""
    return entries.total if isinstance(entries, Book) else _sum(entries.values())


def _sum(entries: Iterable[Entry]) -> Amounts:
    memory = cores = shares = gpus = 0
    for entry in entries:
        amounts = entry.amounts
        memory += amounts.memory
        cores += amounts.cores
        shares += amounts.shares
        gpus += amounts.gpus
    return Amounts(memory=memory, cores=cores, shares=shares, gpus=gpus)


def book(entries: Entries) -> Book:
    """These entries, with their sum."""
    return entries if isinstance(entries, Book) else Book(entries)


def current(entries: Entries, *, now_s: float, reservation_s: float) -> Book:
    """Without the reservations of pods that never appeared."""
    over = [
        key
        for key, entry in entries.items()
        if key.startswith(RESERVATION) and now_s - entry.at_s > reservation_s
    ]
    return book(entries).but(without=over) if over else book(entries)


def reserve(
    entries: Entries, key: str, amounts: Amounts, *, caps: Iterable[Cap], now_s: float, is_again: bool
) -> Book:
    """With a reservation for a pod. Raises BudgetExceeded.

    `is_again`: the pod carries our claim already, so this is the second call for one request, whose first
    call has reserved (or a copy of a converted pod, which has not).
    """
    known = book(entries)
    if RESERVATION + key in known:  # a write whose answer was lost
        return known
    if is_again and any(
        each.startswith(RESERVATION) and entry.amounts == amounts and now_s - entry.at_s < _SAME_REQUEST_S
        for each, entry in known.items()
    ):
        return known
    _check(known.total, amounts, caps)
    return known.but(put={RESERVATION + key: Entry(amounts=amounts, at_s=now_s)})


def charge(
    entries: Entries,
    uid: str,
    amounts: Amounts,
    *,
    caps: Iterable[Cap],
    now_s: float,
    may_redeem: bool,
) -> Book:
    """With an entry for claim `uid`. Raises BudgetExceeded.

    `may_redeem`: kube-controller-manager makes it for a pod, so it takes over a reservation if there is one.
    """
    known, entry = book(entries), Entry(amounts=amounts, at_s=now_s)
    if uid in known:
        return known
    if may_redeem:
        reserved = [
            (found.at_s, key)
            for key, found in known.items()
            if key.startswith(RESERVATION) and found.amounts == amounts
        ]
        if reserved:
            _, oldest = min(reserved)
            return known.but(without=[oldest], put={uid: entry})
    _check(known.total, amounts, caps)
    return known.but(put={uid: entry})


def resize(entries: Entries, uid: str, amounts: Amounts, *, caps: Iterable[Cap], now_s: float) -> Book:
    """With a larger amount for claim `uid`. Raises BudgetExceeded if it is more and does not fit.

    A smaller one changes nothing yet: what is in use stays in use until its program gives it back. `shrink`
    follows.
    """
    known = book(entries)
    before = known[uid].amounts if uid in known else _NOTHING
    _check(known.total + before * -1, amounts, caps, before=before)
    return known.but(put={uid: Entry(amounts=before | amounts, at_s=now_s)})


def shrink(
    entries: Entries, needed: Mapping[str, Amounts], *, now_s: float, in_flight_s: float
) -> dict[str, Entry]:
    """With no more for these claims (by UID) than they need: a resize was refused after its admission, or
    taken back. One that is still on its way, for `in_flight_s`, is left alone."""
    changed = dict(entries)
    for uid, amounts in needed.items():
        entry = entries.get(uid)
        if entry is not None and now_s - entry.at_s > in_flight_s:
            changed[uid] = Entry(amounts=amounts, at_s=entry.at_s)
    return changed


def reconcile(
    entries: Entries, claims: Mapping[str, Entry], *, now_s: float, in_flight_s: float
) -> dict[str, Entry]:
    """In line with the claims that there are (their entries by UID, as they should be at least).

    An entry without a claim is one that was deleted, or refused after its admission, or is still on its way:
    that takes no longer than `in_flight_s`. A claim without an entry was made before the budget. One that was
    given more than anybody thought (a larger GPU has joined the cluster) counts as what it has.
    """
    kept = {
        key: entry
        for key, entry in entries.items()
        if key in claims or key.startswith(RESERVATION) or now_s - entry.at_s <= in_flight_s
    }
    for uid, claim in claims.items():
        known = kept.get(uid)
        if known is None:
            kept[uid] = claim
        elif known.amounts | claim.amounts != known.amounts:
            kept[uid] = Entry(amounts=known.amounts | claim.amounts, at_s=known.at_s)
    return kept


def encode(entries: Entries) -> str:
    """As they stand in `entries` of an AliquotLedger: one text with a line for each, of which an object has
    room for 1.5 MB. The server checks, copies and compares each member of a map for itself: a thousand cost
    it five times as much at every write as one text."""
    return "\n".join(
        [
            f"{int(each.at_s)} {each.amounts.memory} {each.amounts.cores} {each.amounts.shares}"
            f" {each.amounts.gpus} {key}"
            for key, each in entries.items()
        ]
    )


def decode(ledger: JsonObject) -> Book:
    """From an AliquotLedger; what somebody has spoilt counts as nothing and is put right by `reconcile`."""
    entries: dict[str, Entry] = {}
    for line in text(ledger.get("entries")).split("\n"):
        try:
            *numbers, key = line.split(" ", len(Thing) + 1)
            at_s, memory, cores, shares, gpus = map(int, numbers)
        except ValueError:
            continue
        entries[key] = Entry(amounts=Amounts(memory=memory, cores=cores, shares=shares, gpus=gpus), at_s=at_s)
    return Book(entries)


def _check(used: Amounts, wanted: Amounts, caps: Iterable[Cap], *, before: Amounts = _NOTHING) -> None:
    for cap in caps:
        thing = cap.thing
        # What is not more than before is always allowed, also in a namespace beyond its budget.
        if wanted.of(thing) > before.of(thing) and used.of(thing) + wanted.of(thing) > cap.limit:
            left = max(cap.limit - used.of(thing), 0)
            raise BudgetExceeded(
                f"GPU {thing}: {shown(thing, wanted.of(thing))} would exceed the namespace's budget of"
                f" {shown(thing, cap.limit)} ({cap.source}), of which {shown(thing, used.of(thing))} are"
                f" taken; want at most {shown(thing, left)}, or free some first"
            )


def shown(thing: Thing, amount: int) -> str:
    """An amount as its author would write it."""
    if thing is not Thing.MEMORY:
        return f"{amount}%" if thing is Thing.CORES else str(amount)
    return f"{quantity.round_down(amount) // quantity.MIB}Mi"
