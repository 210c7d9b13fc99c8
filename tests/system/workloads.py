# SPDX-License-Identifier: Apache-2.0
"""Pods as a HAMi user writes them, and what their programs say."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.system.images import CLIENT

MIB = 1 << 20
_HOLDERS = ("pods", "resourceclaims")
"""What holds GPUs."""


def gpu_pod(
    name: str,
    *,
    command: Sequence[str] = ("fill",),
    limits: Mapping[str, int | str] | None = None,
    **more_limits: int | str,
) -> Object:
    """A pod of one container with limits on nvidia.com resources: gpu_pod("a", vgpu=1, gpumem=8000)."""
    wanted = {**(limits or {}), **more_limits}
    container: dict[str, Any] = {
        "name": "main",
        "image": CLIENT,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": {f"nvidia.com/{key}": value for key, value in wanted.items()}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


@dataclass(frozen=True, slots=True)
class Admissions:
    """What the API server answered."""

    admitted: list[Object] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@contextmanager
def asking(tenant: "Tenant", pod: Object, *, clients: int = 1) -> Iterator[Admissions]:
    """Meanwhile asks again and again whether `pod` would be admitted, until one is refused."""
    stopping = threading.Event()
    answers = Admissions()

    def ask() -> None:
        while not stopping.wait(0.02):
            try:
                answers.admitted.append(tenant.bed.api.create(pod, namespace=tenant.namespace, dry_run=True))
            except ApiError as error:
                answers.refused.append(str(error))
                return

    threads = [threading.Thread(target=ask, name=f"client-{number}") for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stopping.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


class Tenant:
    """One namespace and the pods that a user makes in it."""

    def __init__(self, bed: Cluster, *, namespace: str, labels: Mapping[str, str]) -> None:
        self.bed = bed
        self.namespace = namespace
        bed.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": dict(labels)}}
        )
        bed.wait_for(
            lambda: bed.get("serviceaccounts", "default", namespace), what=f"service account of {namespace}"
        )

    def create(self, pod: Object) -> Object:
        """Creates a pod and answers it as the server keeps it; raises ApiError when it is refused."""
        return self.bed.api.create(pod, namespace=self.namespace)

    def refusal(self, pod: Object) -> str:
        """The message with which `pod` is refused; fails when it is not."""
        try:
            self.create(pod)
        except ApiError as error:
            return str(error)
        raise AssertionError(f"pod {pod['metadata']['name']} was accepted")

    def said(self, pod: str) -> dict[str, dict[str, Any]]:
        """The events that a pod's program has printed so far, by name; other programs print other lines."""
        try:
            lines = self.bed.logs(pod, self.namespace).splitlines()
        except ApiError:
            return {}
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return {each["event"]: each for each in events}

    def wait_said(self, pod: str, event: str, *, timeout_s: float = 60) -> dict[str, Any]:
        """Waits until a pod's program has printed `event`; fails at once when it printed an error."""

        def heard() -> dict[str, Any] | None:
            events = self.said(pod)
            assert "error" not in events, events["error"]
            return events.get(event)

        return self.bed.wait_for(heard, what=f"pod {pod} to say {event!r}", timeout_s=timeout_s)

    def pod(self, pod: str) -> Object:
        """A pod as the server has it."""
        return self.bed.get("pods", pod, self.namespace)

    def claim_of(self, pod: str) -> Object:
        """The one claim that was made for a pod."""
        statuses = self.bed.get("pods", pod, self.namespace)["status"]["resourceClaimStatuses"]
        [status] = statuses
        return self.bed.get("resourceclaims", status["resourceClaimName"], self.namespace)

    def reported(self, pod: str) -> Object | None:
        """What the agent has written about a pod's one GPU into its claim; None before it has."""
        devices: list[Object] = self.claim_of(pod)["status"].get("devices") or []
        return devices[0] if devices else None

    def conditions(self, pod: str) -> dict[str, tuple[str, str]]:
        """Status and reason of each condition of a pod's one GPU, as its claim has them."""
        made = self.pod(pod)["status"].get("resourceClaimStatuses")
        device = (self.reported(pod) if made else None) or {}
        return {each["type"]: (each["status"], each["reason"]) for each in device.get("conditions") or []}

    def told(self, pod: str, reason: str) -> list[str]:
        """The messages of a pod's events with this reason."""
        events = self.bed.events_of(self.bed.get("pods", pod, self.namespace))
        return [each["message"] for each in events if each["reason"] == reason]

    def delete(self, pod: str) -> None:
        self.bed.delete("pods", pod, self.namespace)

    def remove(self) -> None:
        """Deletes the namespace, and waits until its pods and claims are gone.

        The namespace itself goes later: its controller looks at it after 5 seconds, and again after 8 if it
        still finds claims then. So we delete what it holds.
        """
        self.bed.delete("namespaces", self.namespace, timeout_s=None)  # no more can be made in it
        for kind in _HOLDERS:
            for each in self.bed.list(kind, self.namespace):
                self.bed.delete(kind, each["metadata"]["name"], self.namespace, timeout_s=None)
        self.bed.wait_for(
            lambda: not any(self.bed.list(kind, self.namespace) for kind in _HOLDERS),
            what=f"pods and claims of {self.namespace} to be gone",
            timeout_s=120,
        )
