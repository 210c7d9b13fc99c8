# SPDX-License-Identifier: Apache-2.0
"""Pods as a HAMi user writes them, and what their programs say."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aliquot_api import names
from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.system.images import CLIENT

MIB = 1 << 20
_HOLDERS = ("pods", "resourceclaims")
"""What holds GPUs."""
_SEE = """
import ctypes
cuda, count, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
    print(total.value >> 20)
"""


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


def share_request(name: str, memory: str, *, minor: int | None = None) -> Object:
    """A request for a share, as a user writes it; of the GPU with this number."""
    exactly: Object = {"deviceClassName": names.DEVICE_CLASS, "capacity": {"requests": {"memory": memory}}}
    if minor is not None:
        expression = f'device.attributes["{names.DRIVER}"].minor == {minor}'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": name, "exactly": exactly}


def share_claim(
    name: str,
    *requests: Object,
    constraints: Sequence[Object] = (),
    parameters: Mapping[str, str] | None = None,
) -> Object:
    """A claim with these requests; `parameters` are those of a ShareConfig."""
    devices: Object = {"requests": list(requests), "constraints": list(constraints)}
    if parameters is not None:
        devices["config"] = [{"opaque": share_config(**parameters)}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def share_config(**parameters: str) -> Object:
    """Opaque configuration of our driver."""
    kind = {"apiVersion": f"{names.DRIVER}/v1alpha1", "kind": "ShareConfig"}
    return {"driver": names.DRIVER, "parameters": kind | parameters}


def holding(pod: Object, *claims: str) -> Object:
    """`pod`, each of whose containers holds all of these claims."""
    pod["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    for container in pod["spec"]["containers"]:
        container["resources"] = {"claims": [{"name": claim} for claim in claims]}
    return pod


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

    def sees_mib(self, pod: str, *, container: str = "") -> list[int]:
        """The sizes of the GPUs that a program in a running container finds."""
        shown = self.bed.exec(pod, ["python3", "-c", _SEE], self.namespace, container=container)
        return [int(line) for line in shown.split()]

    def pod(self, pod: str) -> Object:
        """A pod as the server has it."""
        return self.bed.get("pods", pod, self.namespace)

    def has_claims(self, pod: str) -> bool:
        """Whether the claims of a pod were made."""
        return bool(self.pod(pod)["status"].get("resourceClaimStatuses"))

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
        device = (self.reported(pod) if self.has_claims(pod) else None) or {}
        return {each["type"]: (each["status"], each["reason"]) for each in device.get("conditions") or []}

    def place(self, pod: str, *, node: str, allocation: Object) -> None:
        """What the scheduler writes for a pod with one claim: allocation, reservation, binding."""
        api, claim = self.bed.api, self.claim_of(pod)["metadata"]["name"]
        reserved = {"resource": "pods", "name": pod, "uid": self.pod(pod)["metadata"]["uid"]}
        finalizers = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
        api.patch("resourceclaims", claim, finalizers, self.namespace)
        status = {"status": {"allocation": allocation, "reservedFor": [reserved]}}
        api.patch("resourceclaims", claim, status, self.namespace, subresource="status")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        api.raw(
            f"/api/v1/namespaces/{self.namespace}/pods/{pod}/binding",
            method="POST",
            body=json.dumps(binding).encode(),
            headers={"Content-Type": "application/json"},
        )

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
