# SPDX-License-Identifier: Apache-2.0
"""Programs that go around the library are caught from outside, with the defaults; others notice nothing."""

import os
import select
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.system.installation import NAMESPACE, Installation
from tests.system.workloads import MIB, Tenant, gpu_pod, holding, share_claim, share_request

SHARE_MIB: Final = 1000
HOG_MIB: Final = 3000
ACT_S: Final = 2.5
DEAD_S: Final = 1.0
SLACK_S: Final = 1.5
"""For a machine that runs a whole cluster on two cores beside the test."""

COVER: Final = "touch /tmp/nothing && mount --bind /tmp/nothing /etc/ld.so.preload"
NESTED: Final = """
mkdir -p /tmp/root && mount -t tmpfs tmpfs /tmp/root && cd /tmp/root
for each in usr bin sbin lib lib64 run/aliquot-sim dev proc; do
  [ -d /$each ] && mkdir -p $each && mount --rbind /$each $each
done
mkdir etc tmp
exec chroot /tmp/root /usr/local/bin/hog {mib}
"""
ESCAPES: Final = {
    "static": "exec hog-static {mib}",
    "musl": "exec hog-musl {mib}",
    "nested-container": f"exec unshare --user --map-root-user --mount --pid --fork sh -c '{NESTED}'",
    "covered-preload": f"exec unshare --user --map-root-user --mount sh -c '{COVER} && exec hog {{mib}}'",
    "own-linker": (
        "sed s#/etc/ld.so.preload#/etc/ld.so.nothing# /lib64/ld-linux-x86-64.so.2 >/tmp/ld.so"
        " && chmod +x /tmp/ld.so && exec /tmp/ld.so /usr/local/bin/hog {mib}"
    ),
}
OUTLIVED: Final = """
({script})
printf '{"event": "ended", "at": %s}\\n' $(date +%s.%3N)
exec sleep 600
"""
"""The pod goes on when the program has ended: the claim of a pod that is done is gone within seconds."""


def shell(script: str, mib: int = HOG_MIB) -> tuple[str, ...]:
    return ("sh", "-c", script.replace("{mib}", str(mib)))


class Neighbour:
    """An honest tenant that fills its share; it must notice nothing."""

    def __init__(self, aliquot: Installation, tenant: Tenant, node: str) -> None:
        self._aliquot, self._tenant, self._node = aliquot, tenant, node
        tenant.create(gpu_pod("neighbour", vgpu=1, gpumem=2000))
        tenant.wait_said("neighbour", "going on")
        self._before = self._process()

    def _process(self) -> Any:
        [process] = [
            each
            for each in self._aliquot.books(self._node)["processes"]
            if each["command"] == "fill" and each["alive"]  # dead ones of tests before stay in the books
        ]
        return process["pid"], process["used"]

    def check(self) -> None:
        pod = self._tenant.bed.get("pods", "neighbour", self._tenant.namespace)
        [status] = pod["status"]["containerStatuses"]
        assert "running" in status["state"]
        assert status["restartCount"] == 0
        assert self._process() == self._before
        assert self._tenant.told("neighbour", "GPUMemoryOverQuota") == []
        conditions = self._tenant.conditions("neighbour")
        assert {kind for kind, (status, _) in conditions.items() if status == "True"} == {
            "Ready",
            "Healthy",
            "WithinQuota",
        }


@pytest.fixture
def neighbour(aliquot: Installation, tenant: Tenant, node: str) -> Iterator[Neighbour]:
    """Beside each offender: afterwards it must be as it was."""
    neighbour = Neighbour(aliquot, tenant, node)
    yield neighbour
    neighbour.check()


def pid_of(aliquot: Installation, node: str, *, command: str = "hog", least_mib: int = 1) -> int:
    """The process that holds GPU memory as `command`, as the machine numbers it."""

    def found() -> int | None:
        holding = [
            each
            for each in aliquot.books(node)["processes"]
            if each["command"].startswith(command) and each["used"] >= least_mib * MIB and each["alive"]
        ]
        return int(holding[0]["pid"]) if holding else None

    return aliquot.bed.wait_for(found, what=f"{command} to hold GPU memory", timeout_s=30)


def wait_dead(pid: int, *, timeout_s: float) -> None:
    """Waits for the end of a process."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(timeout_s * 1000), f"process {pid} still runs after {timeout_s} s"
    finally:
        os.close(pidfd)


def test_programs_that_go_around_the_library_are_dead_in_time(
    aliquot: Installation, tenant: Tenant, node: str, neighbour: Neighbour
) -> None:
    for way, script in ESCAPES.items():
        tenant.create(
            gpu_pod(way, vgpu=1, gpumem=SHARE_MIB, command=shell(OUTLIVED.replace("{script}", script)))
        )
    bed = aliquot.bed
    for way in ESCAPES:
        crossed_s = tenant.wait_said(way, "holding")["at"]
        died_s = tenant.wait_said(way, "ended")["at"]
        assert died_s - crossed_s < ACT_S + DEAD_S + SLACK_S, way
        messages = bed.wait_for(
            partial(tenant.told, way, "GPUMemoryOverQuota"), what=f"the event on pod {way}", timeout_s=20
        )
        assert "outside the library" in messages[0], way
        assert f"may hold {SHARE_MIB}Mi" in messages[0], way
        seen = bed.wait_for(
            partial(_conditions_with, tenant, way, "ShimMissing"), what=f"the claim of {way}", timeout_s=20
        )
        assert seen["WithinQuota"] == ("False", "OverQuota"), way
        assert seen["ShimMissing"] == ("True", "OutsideTheLibrary"), way
    assert 'action="killed"' in aliquot.metrics(node)


def once(pod: Object) -> Object:
    """A pod that is not started again."""
    pod["spec"]["restartPolicy"] = "Never"
    return pod


def _conditions_with(tenant: Tenant, pod: str, kind: str) -> dict[str, tuple[str, str]] | None:
    found = tenant.conditions(pod)
    return found if kind in found else None


SCRIBBLE: Final = "dd if=/dev/zero of=$(echo /run/aliquot/shares/*/ledger) bs=4096 conv=notrunc"
DAMAGE: Final = {
    "header": f"{SCRIBBLE} count=1",
    "slots": f"{SCRIBBLE} count=33",
    "size": "truncate -s 0 /run/aliquot/shares/*/ledger",
}


def test_a_damaged_ledger_lets_nobody_keep_more_than_the_share(
    aliquot: Installation, tenant: Tenant, node: str, neighbour: Neighbour
) -> None:
    for what, damage in DAMAGE.items():
        # Two programs that fit alone; the books are wiped between them.
        script = f"hog 700 & sleep 3; {damage} 2>/dev/null; hog 700 & sleep 1000"
        tenant.create(once(gpu_pod(what, vgpu=1, gpumem=SHARE_MIB, command=shell(script))))
    bed = aliquot.bed
    for what in DAMAGE:
        seen = bed.wait_for(
            partial(_conditions_with, tenant, what, "LedgerDamaged"), what=f"the claim of {what}"
        )
        assert seen["LedgerDamaged"][1] in ("Truncated", "HeaderOverwritten", "SlotsHidden")

    def all_within() -> bool:
        held: dict[str, int] = {}
        for group in aliquot.books(node)["groups"]:
            held[group["host"]] = held.get(group["host"], 0) + int(group["used"])
        return all(held.get(what, 0) <= (SHARE_MIB + 64) * MIB for what in DAMAGE)

    bed.wait_for(all_within, what="the shares to be within their quotas", timeout_s=15)
    until_s = time.monotonic() + 5
    bed.wait_for(lambda: time.monotonic() > until_s or not all_within(), what="them to stay", timeout_s=10)
    assert all_within()


def test_a_namespace_may_be_only_warned(
    aliquot: Installation, tenant: Tenant, node: str, neighbour: Neighbour
) -> None:
    configure(aliquot.bed, f"namespaces: {{{tenant.namespace}: {{overQuota: warn}}}}")
    try:
        tenant.create(gpu_pod("hog", vgpu=1, gpumem=SHARE_MIB, command=("hog-static", str(HOG_MIB))))
        messages = aliquot.bed.wait_for(
            lambda: tenant.told("hog", "GPUMemoryOverQuota"), what="the warning", timeout_s=30
        )
        assert "nothing is done" in messages[0]
        pid = pid_of(aliquot, node, least_mib=SHARE_MIB)
        with pytest.raises(AssertionError, match="still runs"):
            wait_dead(pid, timeout_s=4)
    finally:
        aliquot.bed.delete("configmaps", "aliquot-node-config", NAMESPACE)
    wait_dead(pid, timeout_s=30)  # the default counts again


def configure(bed: Cluster, document: str) -> None:
    """Writes the node configuration; the agent follows within a moment."""
    header = "apiVersion: aliquot.dev/v1alpha1\nkind: NodeConfig\n"
    bed.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "aliquot-node-config", "namespace": NAMESPACE},
            "data": {"config.yaml": header + document},
        }
    )


def evicting(tenant: Tenant, *, grace_s: int) -> Object:
    """A pod whose claim asks for the strictest policy."""
    claim = share_claim("strict", share_request("gpu", f"{SHARE_MIB}Mi"), parameters={"overQuota": "evict"})
    tenant.bed.api.create(claim, namespace=tenant.namespace)
    pod = holding(gpu_pod("hog", command=("hog-static", str(HOG_MIB))), "strict")
    pod["metadata"]["labels"] = {"app": "hog"}
    pod["spec"]["terminationGracePeriodSeconds"] = grace_s
    return pod


def test_a_claim_may_ask_to_be_evicted(
    aliquot: Installation, tenant: Tenant, node: str, neighbour: Neighbour
) -> None:
    pod = tenant.create(evicting(tenant, grace_s=5))
    tenant.wait_said("hog", "holding")

    def is_evicted() -> bool:
        found = aliquot.bed.list("pods", tenant.namespace)
        hogs = [each for each in found if each["metadata"]["name"] == "hog"]
        return all("deletionTimestamp" in each["metadata"] for each in hogs)

    aliquot.bed.wait_for(is_evicted, what="the pod to be evicted", timeout_s=10)
    events = aliquot.bed.events_of(pod)
    assert any("the pod is evicted" in each["message"] for each in events)


def test_a_disruption_budget_keeps_the_pod_but_not_the_offender(
    aliquot: Installation, tenant: Tenant, node: str, neighbour: Neighbour
) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "hog", "namespace": tenant.namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "hog"}}},
    }
    aliquot.bed.apply(budget)
    tenant.create(evicting(tenant, grace_s=3))
    crossed_s = tenant.wait_said("hog", "holding")["at"]
    pid = pid_of(aliquot, node, least_mib=SHARE_MIB)
    wait_dead(pid, timeout_s=30)
    assert 3 < time.time() - crossed_s < ACT_S + 3 + SLACK_S
    messages = tenant.told("hog", "GPUMemoryOverQuota")
    assert any("its disruption budget forbids it" in message for message in messages)
    assert "deletionTimestamp" not in aliquot.bed.get("pods", "hog", tenant.namespace)["metadata"]


def test_memory_that_nobody_was_given_is_taken_off_what_is_offered(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    def offered_mib() -> int:
        [device] = aliquot.devices(node)
        return int(device["capacity"]["memory"]["value"].removesuffix("Mi"))

    before = bed.wait_for(offered_mib, what="the GPU to be offered")
    sim = aliquot.pod_of("aliquot-sim", node=node)["metadata"]["name"]
    script = "/opt/aliquot-sim/aliquot-sim inject hold --gpu 0 --memory 2Gi >/dev/null 2>&1 & echo $!"
    bed.exec(sim, ["sh", "-c", script], NAMESPACE)
    pid = pid_of(aliquot, node, command="aliquot-sim", least_mib=2048)
    try:
        bed.wait_for(
            lambda: before - 2048 - 256 < offered_mib() <= before - 2048,
            what="less memory to be offered",
            timeout_s=20,
        )
        assert "aliquot_gpu_memory_outside_bytes" in aliquot.metrics(node)
        tenant.create(gpu_pod("big", vgpu=1, gpumem=before - 1000))
        bed.wait_for(
            lambda: any("cannot allocate" in each["message"] for each in bed.events_of(tenant.pod("big"))),
            what="the scheduler to see that there is no room",
        )
    finally:
        os.kill(pid, 9)
    tenant.wait_said("big", "device", timeout_s=120)  # it comes back once it was free for a while
