# SPDX-License-Identifier: Apache-2.0
"""Limits of running pods change, and with new claims in the race never add up to more than the GPU has."""

import contextlib
import copy
import random
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest

from aliquot_agent import region
from aliquot_api import names
from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.system import TestbedError
from tests.system.installation import Installation
from tests.system.test_enforcement import configure
from tests.system.workloads import MIB, Tenant, gpu_pod

GPU_MIB: Final = 22578
"""What programs can have of an L4."""
SCHEDULER: Final = "scheduler"


def elastic(name: str, mib: int, *, gpumem: int) -> Object:
    return gpu_pod(name, vgpu=1, gpumem=gpumem, command=("elastic", str(mib)))


def let_go(tenant: Tenant, pod: str) -> None:
    """Has an elastic program give all its memory back."""
    tenant.bed.exec(pod, ["sh", "-c", "kill -USR1 1"], tenant.namespace)


def annotate(tenant: Tenant, pod: str, limit: str | None) -> None:
    change = {"metadata": {"annotations": {names.ANNOTATION_MEMORY_LIMIT: limit}}}
    tenant.bed.api.patch("pods", pod, change, namespace=tenant.namespace)


def wait_resized(tenant: Tenant, pod: str, reason: str, *, timeout_s: float = 40) -> None:
    def is_it() -> bool:
        return tenant.conditions(pod).get("Resized", ("", ""))[1] == reason

    tenant.bed.wait_for(is_it, what=f"the resize of {pod} to be {reason}", timeout_s=timeout_s)


def offered_mib(aliquot: Installation, node: str) -> int:
    [device] = aliquot.devices(node)
    return int(device["capacity"]["memory"]["value"].removesuffix("Mi"))


def limit_of(tenant: Tenant, pod: str) -> int:
    return int((tenant.reported(pod) or {"data": {"limit": 0}})["data"]["limit"]) // MIB


class Audit:
    """Looks all the time: quotas and use together against what the GPU has."""

    def __init__(self, aliquot: Installation, node: str) -> None:
        self._aliquot, self._node = aliquot, node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most_limits_mib = 0
        self.most_used_mib = 0
        self.looks = 0

    def __enter__(self) -> "Audit":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        folder = f"{names.HOST_RUN_DIR}/claims"
        word = "dd if=$1 bs=8 skip=8 count=1 2>/dev/null | od -An -tu8"
        show = f"find {folder} -name quota -exec sh -c '{word}' _ {{}} ';'"
        while not self._stop.wait(0.2):
            with contextlib.suppress(TestbedError):
                words = self._aliquot.bed.node_exec(self._node, ["/bin/sh", "-c", show]).split()
                self.most_limits_mib = max(self.most_limits_mib, sum(map(int, words)) // MIB)
                self.most_used_mib = max(self.most_used_mib, self._aliquot.used_bytes(self._node) // MIB)
                self.looks += 1

    def check(self) -> None:
        assert self.looks > 0
        assert self.most_limits_mib <= GPU_MIB
        assert self.most_used_mib <= GPU_MIB


@pytest.fixture
def tenant(tenant: Tenant, aliquot: Installation, node: str) -> Tenant:
    """A user of a GPU that is offered whole: what growth, or a dying program, took off it is back."""
    aliquot.bed.wait_for(
        lambda: offered_mib(aliquot, node) == GPU_MIB, what="all of the GPU to be offered", timeout_s=60
    )
    return tenant


@pytest.fixture
def audit(aliquot: Installation, node: str) -> Iterator[Audit]:
    with Audit(aliquot, node) as audit:
        yield audit
    audit.check()


def test_the_audit_reads_the_right_word() -> None:
    assert region.QuotaLayout.memory_limit_bytes.offset == 8 * 8


def test_a_limit_moves_within_the_claim_without_a_restart(
    aliquot: Installation, tenant: Tenant, audit: Audit
) -> None:
    tenant.create(elastic("a", 3000, gpumem=4000))
    tenant.wait_said("a", "full")
    annotate(tenant, "a", "main=3500Mi")
    tenant.wait_said("a", "total 3500", timeout_s=10)
    wait_resized(tenant, "a", "Applied")
    assert limit_of(tenant, "a") == 3500
    assert tenant.told("a", "GPUMemoryResized")

    annotate(tenant, "a", "1000Mi")  # less than it holds: no further down than that
    wait_resized(tenant, "a", "InUse")
    assert 3000 < limit_of(tenant, "a") < 3500
    let_go(tenant, "a")
    tenant.wait_said("a", "total 1000", timeout_s=10)
    wait_resized(tenant, "a", "Applied")

    annotate(tenant, "a", None)
    tenant.wait_said("a", "total 4000", timeout_s=10)
    [status] = tenant.pod("a")["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert tenant.told("a", "GPUMemoryOverQuota") == []


def test_growth_is_accounted_for_before_it_is_given(
    aliquot: Installation, tenant: Tenant, node: str, audit: Audit
) -> None:
    tenant.create(elastic("a", 10000, gpumem=4000))
    tenant.wait_said("a", "part")
    before = offered_mib(aliquot, node)
    annotate(tenant, "a", "12000Mi")
    tenant.wait_said("a", "full", timeout_s=40)
    wait_resized(tenant, "a", "Applied")
    assert offered_mib(aliquot, node) == before - 8000
    tenant.create(gpu_pod("b", vgpu=1, gpumem=15000))
    aliquot.bed.wait_for(lambda: _has_no_room(tenant, "b"), what="the scheduler to see that there is no room")
    annotate(tenant, "a", None)
    wait_resized(tenant, "a", "InUse")
    assert _has_no_room(tenant, "b")
    let_go(tenant, "a")
    assert tenant.wait_said("b", "device")["total_mib"] == 15000
    assert offered_mib(aliquot, node) == before


def _has_no_room(tenant: Tenant, pod: str) -> bool:
    found = tenant.pod(pod)
    events = tenant.bed.events_of(found)
    return found["status"]["phase"] == "Pending" and any(
        "cannot allocate" in event["message"] for event in events
    )


def test_growth_that_cannot_be_is_refused_in_words(
    aliquot: Installation, tenant: Tenant, bed: Cluster
) -> None:
    for pod, mib in (("a", 4000), ("b", 15000)):  # one by one: docs/troubleshooting.md on Kubernetes 1.36
        tenant.create(elastic(pod, 100, gpumem=mib))
        tenant.wait_said(pod, "full")
    annotate(tenant, "a", "12000Mi")
    wait_resized(tenant, "a", "NoRoom")
    bed.wait_for(
        lambda: any("no room for growth" in each for each in tenant.told("a", "GPUMemoryResizeRefused")),
        what="the event on the pod",
    )
    assert limit_of(tenant, "a") == 4000
    configure(bed, "defaults: {resize: {grow: false}}")
    try:
        annotate(tenant, "a", "5000Mi")
        wait_resized(tenant, "a", "NotAllowed")
    finally:
        bed.delete("configmaps", "aliquot-node-config", "aliquot-system")
    tenant.wait_said("a", "total 5000")


def test_a_scheduler_that_was_stopped_and_growth_never_share_memory(
    aliquot: Installation, tenant: Tenant, audit: Audit, bed: Cluster
) -> None:
    tenant.create(elastic("a", 3000, gpumem=4000))
    tenant.wait_said("a", "full")
    bed.pause(SCHEDULER)
    try:
        tenant.create(gpu_pod("b", vgpu=1, gpumem=15000))
        annotate(tenant, "a", "12000Mi")
        tenant.wait_said("a", "total 12000", timeout_s=40)
    finally:
        bed.resume(SCHEDULER)  # it may still believe in the slice of before

    bed.wait_for(lambda: _is_decided(tenant, "b"), what="one of the two to have the memory", timeout_s=90)
    if not _has_no_room(tenant, "b"):
        tenant.wait_said("b", "device", timeout_s=90)
        wait_resized(tenant, "a", "Withdrawn")


def _is_decided(tenant: Tenant, pod: str) -> bool:
    """Whether a pod runs or is known to have no room."""
    return tenant.pod(pod)["status"]["phase"] != "Pending" or _has_no_room(tenant, pod)


@pytest.mark.parametrize("holds_mib", [3000, 10000], ids=["unused growth", "growth in use"])
def test_a_claim_that_was_allocated_on_the_old_capacity_wins(
    tenant: Tenant, audit: Audit, bed: Cluster, holds_mib: int
) -> None:
    """The scheduler chose before the growth and writes after it: here its write is ours."""
    tenant.create(elastic("a", holds_mib, gpumem=4000))
    tenant.wait_said("a", "total 4000")
    bed.pause(SCHEDULER)
    try:
        tenant.create(gpu_pod("b", vgpu=1, gpumem=15000))
        bed.wait_for(lambda: tenant.has_claims("b"), what="the claim of b")
        annotate(tenant, "a", "12000Mi")
        tenant.wait_said("a", "full", timeout_s=40)
        bed.wait_for(lambda: limit_of(tenant, "a") == 12000, what="the growth in the claim's status")
        _schedule(tenant, "b", like="a", memory_mib=15000)
        assert tenant.wait_said("b", "device", timeout_s=90)["total_mib"] == 15000
    finally:
        bed.resume(SCHEDULER)
    wait_resized(tenant, "a", "Withdrawn")
    assert limit_of(tenant, "a") == 4000
    assert any("was taken back" in each for each in tenant.told("a", "GPUMemoryResizeRefused"))
    # What does not shrink in time is above its quota; what was not used costs nobody anything.
    assert bool(tenant.told("a", "GPUMemoryOverQuota")) is (holds_mib > 4000)


def _schedule(tenant: Tenant, pod: str, *, like: str, memory_mib: int) -> None:
    """What the scheduler writes for `pod`, on the node and the GPU of another."""
    allocation = copy.deepcopy(tenant.claim_of(like)["status"]["allocation"])
    [result] = allocation["devices"]["results"]
    result["shareID"] = str(uuid.uuid4())
    result["consumedCapacity"]["memory"] = f"{memory_mib}Mi"
    tenant.place(pod, node=tenant.pod(like)["spec"]["nodeName"], allocation=allocation)


@pytest.mark.faults
@pytest.mark.parametrize("when", ["recorded", "given"])
def test_an_agent_that_is_killed_while_a_share_grows_goes_on(
    aliquot: Installation, tenant: Tenant, node: str, audit: Audit, when: str
) -> None:
    tenant.create(elastic("a", 3000, gpumem=4000))
    tenant.wait_said("a", "full")
    before = offered_mib(aliquot, node)
    annotate(tenant, "a", "12000Mi")
    if when == "recorded":
        aliquot.bed.wait_for(lambda: offered_mib(aliquot, node) < before, what="the lowered capacity")
    else:
        tenant.wait_said("a", "total 12000", timeout_s=40)
    restarts = _restarts(aliquot, node)
    aliquot.kill_agent(node)
    aliquot.bed.wait_for(lambda: _restarts(aliquot, node) > restarts, what="a new agent", timeout_s=90)
    aliquot.wait_ready()
    tenant.create(gpu_pod("b", vgpu=1, gpumem=15000))
    tenant.wait_said("a", "total 12000", timeout_s=60)
    assert offered_mib(aliquot, node) == before - 8000
    aliquot.bed.wait_for(lambda: _has_no_room(tenant, "b"), what="the scheduler to see that there is no room")


def _restarts(aliquot: Installation, node: str) -> int:
    return int(aliquot.agent_status(node)["restartCount"])


def test_growth_and_new_claims_race_for_the_same_memory(
    aliquot: Installation, tenant: Tenant, audit: Audit, bed: Cluster
) -> None:
    chance = random.Random(20261130)  # repeatable
    growers = ("a", "b", "c")
    for pod in growers:
        tenant.create(elastic(pod, 20000, gpumem=2000))
    for pod in growers:
        tenant.wait_said(pod, "part")
    end_s = time.monotonic() + 20
    number = 0
    while time.monotonic() < end_s:
        annotate(tenant, chance.choice(growers), f"{chance.randrange(1, 9) * 1500}Mi")
        number += 1
        name = f"late-{number}"
        tenant.create(gpu_pod(name, vgpu=1, gpumem=chance.randrange(1, 6) * 2000, command=("hog", "500")))
        with contextlib.suppress(TestbedError):
            bed.wait_for(partial(_is_decided, tenant, name), what="the scheduler's word", timeout_s=5)
        if chance.random() < 0.6:
            with contextlib.suppress(ApiError):
                bed.delete("pods", name, tenant.namespace, grace_s=0, timeout_s=None)
