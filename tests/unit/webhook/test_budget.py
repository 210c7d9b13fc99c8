# SPDX-License-Identifier: Apache-2.0
"""Budgets: what is read as one, what is counted, and that no order of admissions promises more than there
is."""

import json
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest

from aliquot_api.errors import InvalidInput
from aliquot_api.quantity import MIB
from aliquot_webhook import ledger
from aliquot_webhook.amounts import Amounts, Thing
from aliquot_webhook.budget import BudgetOffice
from aliquot_webhook.budgets import Budgets, Cap, quota_caps
from aliquot_webhook.charges import LEDGERS, ChargeBusy, Charges, ChargeUnavailable, ledger_path
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.kube import ApiError
from aliquot_webhook.ledger import Entry
from aliquot_webhook.policy import Policy
from aliquot_webhook.reviews import Refused, Request, Result, refuse
from aliquot_webhook.templates import ROOT
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.offices import CONTROLLER_MANAGER, RESERVATION_S, office
from tests.unit.webhook.test_amounts import exactly, spec

CLAIMS = f"{ROOT}/namespaces/team-a/resourceclaims"


def budget(namespace: str = "team-a", **limits: object) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "main"}, "spec": limits}


def request(claim: object = None, *, uid: str = "", user: str = "alice", dry_run: bool = False) -> Request:
    new = {"metadata": {"uid": uid, "name": f"claim-{uid}"}, "spec": claim}
    return Request(
        uid="review",
        namespace="team-a",
        resource="resourceclaims",
        operation="CREATE",
        new=new,
        old={},
        user=user,
        is_dry_run=dry_run,
    )


class Bed:
    """One server, replicas that know a budget, a clock."""

    def __init__(self, **limits: object) -> None:
        self.api = FakeApi()
        self.now_s = 1000.0
        self.limits = limits or {"memory": "100Mi"}
        self.office = self.replica()

    def replica(self, *, patience_s: float = 0.0) -> BudgetOffice:
        budgets = Budgets(policy=Policy())
        budgets.budgets.replace([budget("team-a", **self.limits)])
        return office(self.api, budgets=budgets, now_s=lambda: self.now_s, patience_s=patience_s)

    def admit_pod(self, mib: int, *, by: BudgetOffice | None = None, is_again: bool = False) -> bool:
        return _goes_through(
            lambda: (by or self.office).reserve(
                request(), [spec(exactly(memory=f"{mib}Mi"))], is_again=is_again
            )
        )

    def admit_claim(
        self,
        mib: int,
        uid: str,
        *,
        by: BudgetOffice | None = None,
        user: str = "alice",
        dry_run: bool = False,
    ) -> bool:
        given = request(spec(exactly(memory=f"{mib}Mi")), uid=uid, user=user, dry_run=dry_run)
        return _goes_through(lambda: (by or self.office).charge(given))

    @property
    def entries(self) -> dict[str, Entry]:
        stored = self.api.objects.get(ledger_path("team-a"))
        return ledger.decode(stored) if stored else {}

    @property
    def promised_mib(self) -> int:
        current = ledger.current(self.entries, now_s=self.now_s, reservation_s=RESERVATION_S)
        return ledger.total(current).memory // MIB


def _goes_through(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except Refused as refused:
        if refused.result != Result.BUDGET:
            raise
        return False
    return True


def test_pods_and_claims_fill_a_budget_and_the_next_one_is_told() -> None:
    bed = Bed(memory="100Mi", cores=50)
    assert bed.admit_pod(60)
    assert bed.admit_claim(40, "a")
    with pytest.raises(Refused, match=r"GPU memory: 1Mi would exceed .* 100Mi \(AliquotBudget main\)") as no:
        bed.office.charge(request(spec(exactly(memory="1Mi")), uid="b"))
    assert "of which 100Mi are taken; want at most 0Mi" in no.value.message
    assert bed.promised_mib == 100


@pytest.mark.parametrize("thing", ["cores", "shares", "gpus"])
def test_each_thing_has_a_limit_of_its_own(thing: str) -> None:
    bed = Bed(**{thing: 2})
    given = spec(exactly(memory="1Mi", cores="1"))
    for uid in ("a", "b"):
        bed.office.charge(request(given, uid=uid))
    with pytest.raises(Refused, match=f"GPU {thing}: 1%? would exceed the namespace's budget of 2%?"):
        bed.office.charge(request(given, uid="c"))


def test_a_claim_that_is_made_for_an_admitted_pod_is_not_counted_twice() -> None:
    bed = Bed()
    assert bed.admit_pod(100)
    assert not bed.admit_claim(100, "by-hand")
    assert bed.admit_claim(100, "made", user=CONTROLLER_MANAGER)
    assert list(bed.entries) == ["made"]


def test_a_claim_made_for_a_pod_that_nobody_counted_is_counted() -> None:
    """A pod with a hand-written template never came to us; its claim does."""
    bed = Bed()
    assert bed.admit_claim(70, "a", user=CONTROLLER_MANAGER)
    assert not bed.admit_claim(40, "b", user=CONTROLLER_MANAGER)


def test_a_reservation_ends_when_the_pod_never_appears() -> None:
    bed = Bed()
    assert bed.admit_pod(100)
    bed.now_s += RESERVATION_S
    assert not bed.admit_pod(1)
    bed.now_s += 1
    assert bed.admit_pod(100)


def test_a_second_call_for_one_pod_reserves_once_and_a_late_copy_anew() -> None:
    bed = Bed()
    assert bed.admit_pod(60)
    assert bed.admit_pod(60, is_again=True)
    assert bed.promised_mib == 60
    bed.now_s += 20
    assert not bed.admit_pod(60, is_again=True)


def test_a_dry_run_is_judged_and_written_nowhere() -> None:
    bed = Bed()
    assert bed.admit_claim(100, "a", dry_run=True)
    assert bed.api.writes() == []
    assert bed.admit_claim(100, "b")
    assert not bed.admit_claim(1, "c", dry_run=True)


def test_a_uid_that_would_be_several_lines_is_refused() -> None:
    bed = Bed()
    with pytest.raises(InvalidInput, match=r"metadata\.uid"):
        bed.admit_claim(1, "a\n0 0 0 0 0 b")
    assert not bed.api.calls


def test_without_a_budget_nothing_is_asked() -> None:
    bed = Bed()
    bed.office = office(bed.api)
    assert bed.admit_pod(10**6)
    assert bed.admit_claim(10**6, "a")
    assert bed.api.calls == []


def test_in_steady_state_an_admission_is_one_call() -> None:
    bed = Bed()
    assert bed.admit_claim(1, "a")
    bed.api.calls.clear()
    assert bed.admit_claim(1, "b")
    assert bed.api.calls == [("PUT", ledger_path("team-a"))]


def test_replicas_that_take_turns_lose_one_write_each_and_one_that_is_alone_again_reads_no_more() -> None:
    bed = Bed(gpus=100)
    replicas = [bed.office, bed.replica()]
    assert all(bed.admit_claim(1, f"uid-{number}", by=replicas[number % 2]) for number in range(20))
    assert len(bed.api.writes()) <= 20 + len(replicas)

    for number in range(20, 23):
        bed.api.calls.clear()
        assert bed.admit_claim(1, f"uid-{number}")
    assert bed.api.calls == [("PUT", ledger_path("team-a"))]
    assert len(bed.entries) == 23


def test_a_hundred_at_once_are_a_few_writes_and_no_more_than_fit() -> None:
    bed = Bed(gpus=60)
    slow(bed.api, 0.05)
    with ThreadPoolExecutor(20) as pool:
        admitted = list(pool.map(lambda number: bed.admit_claim(1, f"uid-{number}"), range(100)))
    assert sum(admitted) == 60
    assert len(bed.entries) == 60
    assert len(bed.api.writes()) < 60


def test_a_claim_that_is_made_for_a_pod_is_written_with_the_next_pod() -> None:
    bed = Bed(gpus=1_000_000)
    patient, pods = bed.replica(patience_s=30), 0
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(bed.admit_claim, 1, "made", by=patient, user=CONTROLLER_MANAGER)
        while not made.done():
            assert bed.admit_pod(1, by=patient)
            pods += 1
            wait([made], timeout=0.01)
    assert made.result()
    assert "made" in bed.entries
    assert len(bed.api.writes()) == pods


def test_a_claim_that_is_made_for_a_pod_needs_no_company() -> None:
    bed = Bed(gpus=10)
    assert bed.admit_claim(1, "made", by=bed.replica(patience_s=0.001), user=CONTROLLER_MANAGER)
    assert len(bed.api.writes()) == 1
    assert list(bed.entries) == ["made"]


def slow(api: FakeApi, seconds: float) -> None:
    """From now on the server takes its time."""
    original = api.call

    def call(*args: Any, **kwargs: Any) -> Any:
        threading.Event().wait(seconds)
        return original(*args, **kwargs)

    api.call = call  # type: ignore[method-assign] # slower


def test_two_replicas_with_crowds_serve_all_of_them() -> None:
    bed = Bed(gpus=150)
    slow(bed.api, 0.01)
    replicas = [bed.replica(), bed.replica()]
    with ThreadPoolExecutor(40) as pool:
        admitted = list(
            pool.map(lambda number: bed.admit_claim(1, f"uid-{number}", by=replicas[number % 2]), range(200))
        )
    assert sum(admitted) == 150
    assert len(bed.entries) == 150
    assert len(bed.api.calls) < 200


def test_who_has_waited_too_long_is_told_to_try_again_and_nobody_is_stuck() -> None:
    api, open_gate = FakeApi(), threading.Event()
    original = api.call

    def call(method: Any, path: str, **more: Any) -> Any:
        if method == "POST":
            open_gate.wait(30)
        return original(method, path, **more)

    api.call = call  # type: ignore[method-assign] # a server that hangs
    charges = Charges(api=api, classes=(), whole_bytes=lambda: None, reservation_s=60, wait_s=0.2)

    def reserve() -> str:
        try:
            charges.reserve("team-a", [Amounts(memory=1)], [], is_again=False, dry_run=False)
        except ChargeBusy as busy:
            return str(busy)
        return ""

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(reserve)
        late = [pool.submit(reserve) for _ in range(8)]
        assert {each.result(30) for each in late} == {"the GPU budget of namespace team-a is busy; try again"}
        open_gate.set()
        assert first.result(30) == ""
    assert reserve() == ""


def test_too_many_at_once_is_an_answer_that_means_again() -> None:
    bed = Bed()
    bed.office = replace(
        bed.office,
        charges=Charges(api=bed.api, classes=(), whole_bytes=lambda: None, reservation_s=60, wait_s=-1.0),
    )
    with pytest.raises(Refused) as no:
        bed.office.reserve(request(), [spec(exactly(memory="1Mi"))], is_again=False)
    assert no.value.result == Result.BUSY
    answer = refuse(request(), no.value).review["response"]
    assert answer["status"]["code"] == 429


def test_a_ledger_of_fifteen_thousand_claims_is_below_what_etcd_takes() -> None:
    entries = {
        f"{number:08}-1234-1234-1234-123456789abc": Entry(
            amounts=Amounts(memory=800 * 1024**3, cores=800, shares=128, gpus=8), at_s=1.8e9
        )
        for number in range(15_000)
    }
    assert len(json.dumps(ledger.encode(entries))) < 1.4 * 1024**2


def test_claims_from_before_the_budget_count_from_the_first_admission() -> None:
    bed = Bed()
    bed.api.put(
        f"{CLAIMS}/old",
        {
            "metadata": {"namespace": "team-a", "name": "old", "uid": "1"},
            "spec": spec(exactly(memory="90Mi")),
        },
    )
    bed.api.put(
        f"{CLAIMS}/nic", {"metadata": {"name": "nic"}, "spec": spec(exactly(device_class="nic.example"))}
    )
    assert not bed.admit_pod(20)
    assert bed.admit_pod(10)
    assert bed.promised_mib == 100


def test_a_restart_forgets_nothing() -> None:
    bed = Bed()
    assert bed.admit_claim(60, "a")
    assert not bed.admit_claim(60, "b", by=bed.replica())


def test_a_refusal_is_never_from_an_old_copy() -> None:
    bed = Bed()
    assert bed.admit_claim(100, "a")
    bed.office.charges.change("team-a", dict)
    bed.replica().charges.change("team-a", lambda entries: {})  # the controller gives it back
    assert bed.admit_claim(100, "b")


def test_a_ledger_that_cannot_be_written_admits_nothing() -> None:
    bed = Bed()
    bed.api.forbidden.add(("POST", "aliquotledgers"))
    with pytest.raises(Refused, match=r"cannot be counted: .*forbidden") as no:
        bed.office.charge(request(spec(exactly(memory="1Mi")), uid="a"))
    assert no.value.result == Result.NOT_READY


def test_a_pod_with_several_claims_is_charged_for_all_or_none() -> None:
    bed = Bed()
    claims = [spec(exactly(memory="60Mi")), spec(exactly(memory="60Mi"))]
    with pytest.raises(Refused, match="60Mi would exceed"):
        bed.office.reserve(request(), claims, is_again=False)
    assert bed.admit_pod(100)


def test_what_comes_too_late_is_not_charged() -> None:
    """Its API server has given up, and the author tries again."""
    clock_s = 0.0

    class Slow(FakeApi):
        def call(self, method: Any, path: str, **more: Any) -> Any:
            nonlocal clock_s
            if method != "GET":
                clock_s += 3
                raise ApiError(status=409, message="somebody was quicker")
            return super().call(method, path, **more)

    api = Slow()
    charges = Charges(api=api, classes=(), whole_bytes=lambda: None, reservation_s=60, clock=lambda: clock_s)
    with pytest.raises(ChargeUnavailable, match="is busy; try again"):
        charges.reserve("team-a", [Amounts(memory=1)], [], is_again=False, dry_run=False)
    assert clock_s == 6


def test_a_template_has_to_fit_into_an_empty_namespace() -> None:
    bed = Bed()
    assert bed.admit_claim(100, "a")
    fits = request({"spec": spec(exactly(memory="100Mi"))})
    bed.office.check_template(fits)
    with pytest.raises(Refused, match="101Mi would exceed"):
        bed.office.check_template(request({"spec": spec(exactly(memory="101Mi"))}))


def test_a_resize_is_charged_for_what_it_adds_and_may_always_go_down_which_gives_back_nothing_yet() -> None:
    bed = Bed()
    assert bed.admit_claim(60, "a")
    claim = {"metadata": {"uid": "a", "name": "claim-a"}, "spec": spec(exactly(memory="60Mi"))}
    bed.office.resize(request(), [(claim, {"r0": 100 * MIB})])
    assert bed.promised_mib == 100
    with pytest.raises(Refused, match="101Mi would exceed"):
        bed.office.resize(request(), [(claim, {"r0": 101 * MIB})])
    bed.office.resize(request(), [(claim, {"r0": 10 * MIB})])
    assert bed.promised_mib == 100  # its programs may still use it: the controller looks


def test_a_whole_gpu_cannot_be_counted_while_none_is_known() -> None:
    bed = Bed()
    bed.office = office(bed.api, budgets=bed.office.budgets, known=Inventory())
    with pytest.raises(Refused, match="no GPU is known yet"):
        bed.office.reserve(request(), [spec(exactly())], is_again=False)


def test_budgets_and_quotas_are_read_and_forgotten() -> None:
    budgets = Budgets(policy=Policy())
    budgets.budgets.replace([budget(memory="1Gi", gpus=3), budget("team-b", cores="x")])
    hard = {
        "requests.nvidia.com/gpumem": "8k",
        "limits.nvidia.com/gpucores": 90,
        "requests.nvidia.com/vgpu": "2",
    }
    quota: dict[str, Any] = {
        "metadata": {"namespace": "team-a", "name": "hami"},
        "spec": {"hard": {**hard, "pods": "5", "nvidia.com/gpumem": "1"}},
    }
    budgets.quotas.upsert(quota)
    assert set(budgets.caps("team-a")) == {
        Cap(Thing.MEMORY, 1024 * MIB, "AliquotBudget main"),
        Cap(Thing.GPUS, 3, "AliquotBudget main"),
        Cap(Thing.MEMORY, 8000 * MIB, "ResourceQuota hami, requests.nvidia.com/gpumem"),
        Cap(Thing.CORES, 90, "ResourceQuota hami, limits.nvidia.com/gpucores"),
        Cap(Thing.GPUS, 2, "ResourceQuota hami, requests.nvidia.com/vgpu"),
    }
    assert [cap.limit for cap in budgets.caps("team-b")] == [0]  # fail closed
    assert budgets.caps("team-c") == ()

    quota["spec"]["scopes"] = ["BestEffort"]
    assert quota_caps(quota, Policy()) == ()
    budgets.quotas.upsert(quota)
    budgets.budgets.remove(budget())
    assert budgets.namespaces() == ("team-b",)
    budgets.budgets.replace([])
    assert budgets.namespaces() == ()


def test_the_ledger_is_put_in_line_with_the_claims_that_there_are() -> None:
    def entry(mib: int, at_s: float) -> Entry:
        return Entry(amounts=Amounts(memory=mib * MIB), at_s=at_s)

    entries = {
        "gone": entry(1, 0),
        "in flight": entry(2, 95),
        "there": entry(3, 0),
        "grown": entry(4, 0),
        "reservation-1": entry(5, 95),
    }
    claims = {"there": entry(3, 0), "grown": entry(8, 0), "from before": entry(9, 0)}
    after = ledger.reconcile(entries, claims, now_s=100, in_flight_s=10)
    assert {key: found.amounts.memory // MIB for key, found in after.items()} == {
        "in flight": 2,
        "there": 3,
        "grown": 8,
        "reservation-1": 5,
        "from before": 9,
    }
    assert ledger.decode({"entries": ledger.encode(after)}) == after


def test_a_spoilt_ledger_is_no_end_of_everything() -> None:
    fine = Entry(amounts=Amounts(memory=2, cores=3, shares=4, gpus=5), at_s=1)
    assert ledger.decode({"entries": "5 a\n1 2 3 4 5 b\n1 2 x 4 5 c\n\n1 2"}) == {"b": fine}
    assert ledger.decode({"entries": {"a": 5}}) == {}


@pytest.mark.parametrize("seed", range(int(os.environ.get("ALIQUOT_BUDGET_MODELS", "60"))))
def test_replicas_never_promise_more_than_there_is(seed: int) -> None:
    """Three replicas; before each call to the server another one may admit something. Claims of admitted pods
    always go through, restarts forget nothing, and all that is given back can be had again."""
    chance = random.Random(seed)
    bed = Bed()
    replicas = [bed.replica() for _ in range(3)]
    busy: list[BudgetOffice] = []
    waiting: list[int] = []
    claims: list[str] = []
    original = bed.api.call

    def anything() -> None:
        by = chance.choice([each for each in replicas if each not in busy])
        busy.append(by)
        move = chance.randrange(6)
        mib = chance.choice([1, 10, 30, 60])
        if move == 0 and bed.admit_pod(mib, by=by):
            waiting.append(mib)
        elif move == 1 and bed.admit_claim(mib, f"hand-{chance.random()}", by=by):
            pass
        elif move == 2 and waiting:
            mib, uid = waiting.pop(chance.randrange(len(waiting))), f"made-{chance.random()}"
            assert bed.admit_claim(mib, uid, by=by, user=CONTROLLER_MANAGER), "an admitted pod waits for ever"
            claims.append(uid)
        elif move == 3 and claims:
            uid = claims.pop()
            by.charges.change("team-a", lambda entries: {k: v for k, v in entries.items() if k != uid})
        elif move == 4 and len(busy) == 1:
            replicas[replicas.index(by)] = bed.replica()
        busy.remove(by)

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(busy) < 3 and chance.random() < 0.6:
            anything()
        return original(*args, **kwargs)

    bed.api.call = call  # type: ignore[method-assign] # interleave
    for _ in range(60):
        anything()
        assert bed.promised_mib <= 100
    assert LEDGERS in ledger_path("x")
