# SPDX-License-Identifier: Apache-2.0
"""What is promised in a namespace: an entry for each claim, and a reservation for each pod on its way.

Pure functions over the entries of one AliquotLedger; `charges` keeps them on the API server. A claim's entry
is made at its admission, under its UID. A pod that we give a claim has a reservation from its admission until
kube-controller-manager makes that claim, which then takes over a reservation of the same amounts, whosever:
all of them are equal. So no annotation, no owner and no name has to be believed, and each claim is counted
once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias

from aliquot_api import quantity
from aliquot_webhook.amounts import Amounts, Thing
from aliquot_webhook.budgets import Cap
from aliquot_webhook.wire import JsonObject, dig, obj, text

RESERVATION: Final = "reservation-"
"""Prefix of the keys of reservations; no UID begins so."""
_SAME_REQUEST_S: Final = 10.0
"""The API server calls a webhook twice for one request (reinvocation) within its time-out."""

_NOTHING: Final = Amounts()


class BudgetExceeded(Exception):
    """The namespace has not so much left; the text says of what, and how much there is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something promised."""

    amounts: Amounts
    at_s: float
    """When, in seconds since 1970."""
    claim: str = ""
    """The claim's name; empty for a reservation."""


Entries: TypeAlias = Mapping[str, Entry]


def total(entries: Entries) -> Amounts:
    """All that is promised."""
    amounts = Amounts()
    for entry in entries.values():
        amounts += entry.amounts
    return amounts


def current(entries: Entries, *, now_s: float, reservation_s: float) -> dict[str, Entry]:
    """Without the reservations of pods that never appeared."""
    return {
        key: entry
        for key, entry in entries.items()
        if not key.startswith(RESERVATION) or now_s - entry.at_s <= reservation_s
    }


def reserve(
    entries: Entries, key: str, amounts: Amounts, *, caps: Iterable[Cap], now_s: float, is_again: bool
) -> dict[str, Entry]:
    """With a reservation for a pod. Raises BudgetExceeded.

    `is_again`: the pod carries our claim already, so this is the second call for one request, whose first
    call has reserved (or a copy of a converted pod, which has not).
    """
    if RESERVATION + key in entries:  # a write whose answer was lost
        return dict(entries)
    if is_again and any(
        each.startswith(RESERVATION) and entry.amounts == amounts and now_s - entry.at_s < _SAME_REQUEST_S
        for each, entry in entries.items()
    ):
        return dict(entries)
    _check(entries, amounts, caps)
    return {**entries, RESERVATION + key: Entry(amounts=amounts, at_s=now_s)}


def charge(
    entries: Entries,
    uid: str,
    claim: str,
    amounts: Amounts,
    *,
    caps: Iterable[Cap],
    now_s: float,
    may_redeem: bool,
) -> dict[str, Entry]:
    """With an entry for claim `uid`. Raises BudgetExceeded.

    `may_redeem`: kube-controller-manager makes it for a pod, so it takes over a reservation if there is one.
    """
    entry = Entry(amounts=amounts, at_s=now_s, claim=claim)
    if uid in entries:
        return dict(entries)
    if may_redeem:
        reserved = [
            (found.at_s, key)
            for key, found in entries.items()
            if key.startswith(RESERVATION) and found.amounts == amounts
        ]
        if reserved:
            _, oldest = min(reserved)
            return {key: found for key, found in entries.items() if key != oldest} | {uid: entry}
    _check(entries, amounts, caps)
    return {**entries, uid: entry}


def resize(
    entries: Entries, uid: str, claim: str, amounts: Amounts, *, caps: Iterable[Cap], now_s: float
) -> dict[str, Entry]:
    """With a larger amount for claim `uid`. Raises BudgetExceeded if it is more and does not fit.

    A smaller one changes nothing yet: what is in use stays in use until its program gives it back. `shrink`
    follows.
    """
    before = entries.get(uid, Entry(amounts=Amounts(), at_s=now_s, claim=claim))
    others = {key: entry for key, entry in entries.items() if key != uid}
    _check(others, amounts, caps, before=before.amounts)
    return {**others, uid: Entry(amounts=before.amounts | amounts, at_s=now_s, claim=claim)}


def shrink(
    entries: Entries, needed: Mapping[str, Amounts], *, now_s: float, in_flight_s: float
) -> dict[str, Entry]:
    """With no more for these claims (by UID) than they need: a resize was refused after its admission, or
    taken back. One that is still on its way, for `in_flight_s`, is left alone."""
    changed = dict(entries)
    for uid, amounts in needed.items():
        entry = entries.get(uid)
        if entry is not None and now_s - entry.at_s > in_flight_s:
            changed[uid] = Entry(amounts=amounts, at_s=entry.at_s, claim=entry.claim)
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
            kept[uid] = Entry(amounts=known.amounts | claim.amounts, at_s=known.at_s, claim=known.claim)
    return kept


def encode(entries: Entries) -> dict[str, dict[str, object]]:
    """As they stand in `entries` of an AliquotLedger."""
    return {
        key: {
            **({"claim": entry.claim} if entry.claim else {}),
            "at": int(entry.at_s),
            **{thing: amount for thing, amount in asdict(entry.amounts).items() if amount},
        }
        for key, entry in sorted(entries.items())
    }


def decode(ledger: JsonObject) -> dict[str, Entry]:
    """From an AliquotLedger; what somebody has spoilt counts as nothing and is put right by `reconcile`."""
    found: dict[str, Entry] = {}
    for key, value in obj(ledger.get("entries")).items():
        amounts = {thing: dig(value, thing) for thing in Thing}
        at = dig(value, "at")
        found[key] = Entry(
            amounts=Amounts(
                **{thing: amount for thing, amount in amounts.items() if isinstance(amount, int)}
            ),
            at_s=at if isinstance(at, int) else 0,
            claim=text(dig(value, "claim")),
        )
    return found


def _check(entries: Entries, wanted: Amounts, caps: Iterable[Cap], *, before: Amounts = _NOTHING) -> None:
    used = total(entries)
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
