# SPDX-License-Identifier: Apache-2.0
"""Of several controllers one leads, by the API server's own checks and no clock but each one's own."""

import random

import pytest

from aliquot_controller.leases import Leader
from aliquot_webhook.kube import ApiError
from tests.unit.webhook.fake_api import FakeApi

LEASE = "/apis/coordination.k8s.io/v1/namespaces/aliquot-system/leases/aliquot-controller"
DURATION_S = 15.0


class Bed:
    """Candidates on one server, with clocks that have nothing in common."""

    def __init__(self, candidates: int) -> None:
        self.api = FakeApi()
        self.clocks = [1000.0 * index for index in range(candidates)]
        self.leaders = [self._leader(index) for index in range(candidates)]

    def _leader(self, index: int) -> Leader:
        return Leader(
            api=self.api,
            namespace="aliquot-system",
            name="aliquot-controller",
            identity=f"candidate-{index}",
            duration_s=DURATION_S,
            clock=lambda: self.clocks[index],
        )

    def wait(self, seconds: float) -> None:
        self.clocks = [clock + seconds for clock in self.clocks]

    def leading(self) -> list[int]:
        return [index for index, leader in enumerate(self.leaders) if leader.leads]


def test_the_first_one_leads_and_keeps_leading_while_it_renews() -> None:
    bed = Bed(2)
    for _ in range(10):
        for leader in bed.leaders:
            assert leader.step() < DURATION_S / 2
        assert bed.leading() == [0]
        bed.wait(3)


def test_another_takes_over_when_the_first_falls_silent_and_not_before() -> None:
    bed = Bed(2)
    for leader in bed.leaders:
        leader.step()
    bed.wait(DURATION_S * 2 / 3)
    assert bed.leading() == []  # the old one has stopped by itself before a new one can start
    bed.leaders[1].step()
    assert bed.leading() == []
    bed.wait(DURATION_S / 2)
    bed.leaders[1].step()
    assert bed.leading() == [1]
    bed.leaders[0].step()
    assert bed.leading() == [1]


def test_a_lease_given_back_is_taken_at_once() -> None:
    bed = Bed(2)
    for leader in bed.leaders:
        leader.step()
    bed.leaders[0].release()
    assert bed.leading() == []
    bed.leaders[1].step()
    assert bed.leading() == [1]
    bed.leaders[0].release()
    assert bed.api.objects[LEASE]["spec"]["holderIdentity"] == "candidate-1"


def test_a_leader_that_cannot_reach_the_server_stops_leading() -> None:
    bed = Bed(1)
    bed.leaders[0].step()
    bed.api.down = True
    with pytest.raises(ApiError):
        bed.leaders[0].step()
    assert bed.leading() == [0]
    bed.wait(DURATION_S)
    assert bed.leading() == []
    bed.leaders[0].release()


@pytest.mark.parametrize("seed", range(50))
def test_two_never_lead_at_once(seed: int) -> None:
    chance = random.Random(seed)
    bed = Bed(3)
    for _ in range(300):
        chance.choice(bed.leaders).step()
        if chance.random() < 0.05:
            chance.choice(bed.leaders).release()
        assert len(bed.leading()) <= 1
        bed.wait(chance.choice([0, 1, 3, 8, 20]))
