# SPDX-License-Identifier: Apache-2.0
"""What the controller does about budgets."""

from typing import Any

from aliquot_api.quantity import MIB
from aliquot_controller.budgets import BudgetKeeper, ClaimSink, Usage, series
from aliquot_webhook.amounts import Amounts, Thing
from aliquot_webhook.budgets import Cap
from aliquot_webhook.charges import LEDGERS, ledger_path
from tests.unit.webhook.offices import CLASSES
from tests.unit.webhook.test_amounts import exactly, spec
from tests.unit.webhook.test_budget import CLAIMS, request
from tests.unit.webhook.test_budget import Bed as AdmissionBed

BUDGET = f"{LEDGERS}/namespaces/team-a/aliquotbudgets/main"


class Bed(AdmissionBed):
    """With a controller, whose copy of the budgets is its own."""

    def __init__(self) -> None:
        super().__init__(memory="100Mi")
        office = self.replica()
        self.shown: dict[str, Usage] = {}
        self.budgets = office.budgets
        self.keeper = BudgetKeeper(
            api=self.api,
            budgets=office.budgets,
            charges=office.charges,
            classes=CLASSES,
            whole_bytes=lambda: 80_000 * MIB,
            in_flight_s=90.0,
            show=self.shown.update,
            now_s=lambda: self.now_s,
        )
        self.api.put(BUDGET, {"metadata": {"namespace": "team-a", "name": "main"}, "spec": {}})
        # The status subresource is kept with the object.
        self.api.put(f"{BUDGET}/status", {})

    def make_claim(self, mib: int, uid: str, *, given_mib: int | None = None) -> None:
        claim: dict[str, Any] = {
            "metadata": {"namespace": "team-a", "name": uid, "uid": uid},
            "spec": spec(exactly(memory=f"{mib}Mi")),
        }
        if given_mib is not None:
            consumed = {"memory": f"{given_mib}Mi", "cores": "0", "shares": "1"}
            result = {"driver": "gpu.aliquot.dev", "consumedCapacity": consumed}
            claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        self.api.put(f"{CLAIMS}/{uid}", claim)

    @property
    def status(self) -> Any:
        return self.api.objects[f"{BUDGET}/status"].get("status")


def test_a_deleted_claim_is_given_back_at_once() -> None:
    bed = Bed()
    assert bed.admit_claim(100, "a")
    ClaimSink(gone=bed.keeper.gone).remove({"metadata": {"namespace": "team-a", "uid": "a"}})
    bed.keeper.gone("team-without-a-budget", "a")
    bed.keeper.release()
    assert bed.promised_mib == 0
    assert bed.admit_claim(100, "b")


def test_what_never_appeared_is_given_back_after_a_while() -> None:
    bed = Bed()
    assert bed.admit_claim(100, "a")
    bed.now_s += 90
    bed.keeper.reconcile()
    assert bed.promised_mib == 100
    bed.now_s += 1
    bed.keeper.reconcile()
    assert bed.promised_mib == 0


def test_use_and_consumption_are_shown() -> None:
    bed = Bed()
    assert bed.admit_claim(40, "a")
    bed.make_claim(40, "a", given_mib=40)
    assert bed.admit_pod(10)
    bed.keeper.reconcile()
    assert bed.status["used"] == {"memory": "50Mi", "cores": "0", "shares": "2", "gpus": "2"}
    assert bed.status["consumed"] == {"memory": "40Mi", "cores": "0", "shares": "1", "gpus": "1"}
    values = series(bed.shown)
    assert values[("team-a", Thing.MEMORY, "limit")] == 100 * MIB
    assert values[("team-a", Thing.MEMORY, "used")] == 50 * MIB
    assert ("team-a", Thing.CORES, "limit") not in values


def test_of_several_limits_the_smallest_is_shown() -> None:
    caps = (Cap(Thing.GPUS, 5, "a"), Cap(Thing.GPUS, 3, "b"))
    values = series({"team-a": Usage(caps=caps, used=Amounts(), consumed=Amounts())})
    assert values[("team-a", Thing.GPUS, "limit")] == 3


def test_a_claim_that_was_given_more_than_promised_counts_as_what_it_has() -> None:
    bed = Bed()
    assert bed.admit_claim(40, "a")
    bed.make_claim(40, "a", given_mib=70)
    bed.keeper.reconcile()
    assert not bed.admit_claim(31, "b")
    assert bed.admit_claim(30, "c")


def test_claims_from_before_are_added() -> None:
    bed = Bed()
    assert bed.admit_claim(10, "a")
    bed.make_claim(10, "a")
    bed.make_claim(60, "old")
    bed.keeper.reconcile()
    assert bed.promised_mib == 70


def test_a_ledger_without_a_budget_goes_when_it_has_been_quiet() -> None:
    bed = Bed()
    assert bed.admit_claim(10, "a")
    bed.budgets.budgets.replace([])
    for _ in range(3):
        bed.keeper.reconcile()
        bed.now_s += 60
    assert ledger_path("team-a") in bed.api.objects
    bed.keeper.reconcile()
    assert ledger_path("team-a") not in bed.api.objects


def test_a_ledger_that_cannot_be_written_keeps_no_other_namespace_waiting() -> None:
    bed = Bed()
    bed.budgets.budgets.upsert({"metadata": {"namespace": "a-ends", "name": "main"}, "spec": {"gpus": 1}})
    bed.api.forbidden.add(("GET", "/namespaces/a-ends/aliquotledgers"))
    assert bed.admit_claim(10, "a")
    assert bed.admit_claim(20, "b")
    bed.keeper.gone("a-ends", "c")
    bed.keeper.gone("team-a", "b")
    bed.keeper.release()
    assert bed.promised_mib == 10
    bed.make_claim(10, "a")
    bed.make_claim(5, "old")
    bed.keeper.reconcile()
    assert bed.promised_mib == 15
    assert set(bed.shown) == {"team-a"}


def grown(bed: Bed, limit_mib: int | None) -> dict[str, Any]:
    """Claim "a" of 40Mi, whose limit the agent has moved."""
    bed.make_claim(40, "a", given_mib=40)
    claim = bed.api.objects[f"{CLAIMS}/a"]
    if limit_mib is not None:
        share = {"driver": "gpu.aliquot.dev", "data": {"limit": limit_mib * MIB}}
        claim["status"]["devices"] = [share]
    return claim


def annotated(bed: Bed, value: str | None) -> None:
    claims = {"resources": {"claims": [{"name": "gpu"}]}}
    bed.api.put(
        "/api/v1/namespaces/team-a/pods/p",
        {
            "metadata": {"annotations": {} if value is None else {"aliquot.dev/gpu-memory-limit": value}},
            "spec": {
                "containers": [{"name": "main", **claims}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            },
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a"}]},
        },
    )


def test_a_resize_that_was_refused_after_its_admission_is_given_back() -> None:
    bed = Bed()
    assert bed.admit_claim(40, "a")
    bed.now_s += 1000
    bed.office.resize(request(), [(grown(bed, None), {"r0": 100 * MIB})])
    annotated(bed, None)
    bed.now_s += 90
    bed.keeper.reconcile()
    assert bed.promised_mib == 100  # its update may be on its way
    bed.now_s += 1
    bed.keeper.reconcile()
    assert bed.promised_mib == 40


def test_what_is_wished_or_in_force_stays_counted() -> None:
    bed = Bed()
    assert bed.admit_claim(40, "a")
    claim = grown(bed, None)
    bed.office.resize(request(), [(claim, {"r0": 100 * MIB})])
    annotated(bed, "main=90Mi")  # not yet granted
    bed.now_s += 91
    bed.keeper.reconcile()
    assert bed.promised_mib == 90
    grown(bed, 80)
    annotated(bed, None)
    bed.office.resize(request(), [(claim, {})])
    assert bed.promised_mib == 90
    bed.now_s += 91
    bed.keeper.reconcile()
    assert bed.promised_mib == 80  # its programs hold on to it
    grown(bed, 40)
    bed.keeper.reconcile()
    assert bed.promised_mib == 40


def test_growth_that_nobody_charged_counts() -> None:
    bed = Bed()
    assert bed.admit_claim(40, "a")
    grown(bed, 70)
    bed.keeper.reconcile()
    assert bed.promised_mib == 70
    assert not bed.admit_claim(31, "b")
