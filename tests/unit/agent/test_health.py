# SPDX-License-Identifier: Apache-2.0
"""What makes a GPU sick, and what it takes until it is well again."""

from dataclasses import replace

import pytest

from aliquot_agent import health
from aliquot_agent.health import Condition, Fault, Sample
from aliquot_agent.nodepolicy import APPLICATION_XIDS

CALM_S = 30.0
NOW = "2026-01-02T03:04:05Z"


class Patient:
    """A GPU that is looked at once a second."""

    def __init__(self) -> None:
        self.condition = Condition()
        self.now_s = 0.0
        self.look(uncorrected=0)

    def look(self, **sample: object) -> "Patient":
        self.now_s += 1
        self.condition = health.judge(
            self.condition,
            replace(Sample(), **sample),  # type: ignore[arg-type]
            ignored_xids=APPLICATION_XIDS,
            calm_s=CALM_S,
            now_s=self.now_s,
            now=NOW,
        )
        return self

    def looks(self, seconds: int, **sample: object) -> bool:
        """Whether it is healthy after so many looks."""
        for _ in range(seconds):
            self.look(**sample)
        return self.condition.healthy


@pytest.mark.parametrize("code", sorted(APPLICATION_XIDS))
def test_faults_of_programs_never_count(code: int) -> None:
    assert Patient().look(xids=(code,)).condition.healthy


@pytest.mark.parametrize(
    ("sample", "fault", "detail"),
    [
        pytest.param({"xids": (79,)}, Fault.XID, "xid-79", id="xid"),
        pytest.param({"xids": (13, 48, 13)}, Fault.XID, "xid-48", id="among faults of programs"),
        pytest.param({"uncorrected": 1}, Fault.ECC, "ecc", id="ecc"),
        pytest.param({"lost": True}, Fault.LOST, "lost", id="lost"),
        pytest.param({"lost": True, "xids": (79,)}, Fault.LOST, "lost", id="lost, with its xid"),
    ],
)
def test_faults_of_the_gpu_taint_it(sample: dict[str, object], fault: Fault, detail: str) -> None:
    condition = Patient().look(**sample).condition
    assert (condition.fault, condition.detail, condition.since) == (fault, detail, NOW)
    taint = health.taint(condition, effect="NoSchedule")
    assert taint == {
        "key": "gpu.aliquot.dev/unhealthy",
        "value": detail,
        "effect": "NoSchedule",
        "timeAdded": NOW,
    }
    assert "reset the GPU" in health.explain(condition)


def test_errors_of_before_the_first_look_do_not_count() -> None:
    condition = health.judge(
        Condition(), Sample(uncorrected=7), ignored_xids=APPLICATION_XIDS, calm_s=1, now_s=1, now=NOW
    )
    assert condition.healthy


def test_silence_is_no_evidence_of_recovery() -> None:
    patient = Patient().look(xids=(79,))
    assert not patient.looks(600)
    assert not patient.looks(600, uncorrected=0)


def test_a_driver_that_asks_for_nothing_any_more_is_evidence_after_a_calm_while() -> None:
    patient = Patient().look(xids=(79,), action_needed=True)
    assert not patient.looks(600, action_needed=True)
    assert not patient.looks(int(CALM_S) - 1, action_needed=False)
    assert patient.looks(2, action_needed=False)
    assert health.taint(patient.condition, effect="NoSchedule") is None


def test_a_relapse_begins_the_calm_anew() -> None:
    patient = Patient().look(xids=(79,), action_needed=True)
    patient.looks(int(CALM_S) - 2, action_needed=False)
    patient.look(action_needed=True)
    assert not patient.looks(int(CALM_S) - 1, action_needed=False)
    patient.look(xids=(31,), action_needed=False)  # a program's fault is none
    patient.look(xids=(48,), action_needed=False)
    assert not patient.looks(int(CALM_S), action_needed=False)
    assert patient.looks(2, action_needed=False)


def test_a_counter_that_began_anew_is_evidence() -> None:
    patient = Patient().look(uncorrected=4)
    assert not patient.looks(100, uncorrected=4)
    assert patient.looks(int(CALM_S) + 2, uncorrected=0)


def test_a_gpu_that_is_back_on_the_bus_is_well_after_a_calm_while() -> None:
    patient = Patient().look(lost=True)
    assert not patient.looks(100, lost=True)
    assert not patient.looks(int(CALM_S) - 1)
    assert patient.looks(3)


def test_a_gpu_that_is_back_and_still_asks_for_a_reset_stays_sick() -> None:
    patient = Patient().look(lost=True)
    assert not patient.looks(100, action_needed=True)


def test_the_first_fault_tells_since_when() -> None:
    patient = Patient().look(xids=(48,))
    before = patient.condition.since
    assert patient.look(lost=True).condition.since == before
