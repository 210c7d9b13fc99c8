# SPDX-License-Identifier: Apache-2.0
"""A running cluster as an object: bring it up, use it, break it, take it down."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from . import binaries as programs
from . import controlplane, lifecycle
from .api import Api, ApiError, Manifests, Object, Objects
from .audit import AuditLog
from .binaries import DEFAULT_KUBERNETES, Binaries
from .collect import collect
from .images import standard_images
from .machinery import Machinery
from .node import KUBE_PROXY, KUBELET
from .spec import Addresses, Layout, Spec, load, state_root
from .system import TestbedError, run, wait_until

T = TypeVar("T")


class Cluster(Machinery):
    """One cluster; `Cluster.up` makes it, `Cluster.attach` finds one that is up."""

    def __init__(
        self, *, spec: Spec, layout: Layout, addresses: Addresses, binaries: Binaries, lock: int | None = None
    ) -> None:
        super().__init__(spec=spec, layout=layout, addresses=addresses, binaries=binaries)
        self.audit = AuditLog(file=layout.audit_log)
        self._lock = lock
        self._api: Api | None = None

    @classmethod
    def up(
        cls,
        *,
        name: str = "main",
        nodes: int = 1,
        kubernetes: str = DEFAULT_KUBERNETES,
        gates: Mapping[str, bool] | None = None,
        api_server_flags: Sequence[str] = (),
        node_disk_bytes: int | None = None,
        keep: bool = False,
        artifacts: Path | None = None,
    ) -> Self:
        """Make a cluster and wait until its nodes are Ready; what killed runs left is cleared away first.

        It lives as long as this process, whose successor clears it away; with `keep` it stays until `down`.
        If it does not come up, its logs are stored in the folder `artifacts`.
        """
        spec = Spec(
            name=name,
            nodes=nodes,
            kubernetes=kubernetes,
            gates=gates or {},
            api_server_flags=api_server_flags,
            node_disk_bytes=node_disk_bytes,
        )
        _check_machine()
        binaries = programs.ensure(kubernetes)
        images = standard_images()
        layout, addresses, lock = lifecycle.claim(spec, binaries)
        cluster = cls(spec=spec, layout=layout, addresses=addresses, binaries=binaries, lock=lock)
        try:
            cluster._start(images)
        except BaseException:
            if artifacts is not None:
                cluster.collect(artifacts)
            cluster.down()
            raise
        if keep:
            layout.ready.touch()
            cluster._unlock()
        return cluster

    @classmethod
    def attach(cls, name: str = "main") -> Self:
        """The cluster of that name, which another process may have made."""
        layout = Layout.of(name)
        spec, addresses, binaries = load(layout)
        return cls(spec=spec, layout=layout, addresses=addresses, binaries=binaries)

    def down(self) -> None:
        """Take the cluster down; nothing of it stays on the machine."""
        lifecycle.release(self.layout)
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kubeconfig(self) -> Path:
        """A file that makes its reader the administrator, from the host and from every node."""
        return self.layout.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL, the same from host, nodes and pods."""
        return controlplane.server_url(self.addresses)

    @property
    def api(self) -> Api:
        """The API as administrator."""
        if self._api is None:
            pki = self.layout.pki
            files = {"authority": pki / "ca.crt", "certificate": pki / "admin.crt", "key": pki / "admin.key"}
            self._api = Api(server=self.server, **files)
        return self._api

    def apply(self, manifests: Manifests, *, namespace: str = "default") -> Objects:
        """Create or change objects (server-side apply): YAML text, a file, a dict or several."""
        return self.api.apply(manifests, namespace=namespace)

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        """One object; ApiError (404) if there is none."""
        return self.api.get(kind, name, namespace)

    def list(self, kind: str, namespace: str | None = None, *, labels: str = "") -> Objects:
        """Objects of a kind, in one namespace or in all."""
        return self.api.list(kind, namespace, labels=labels)

    def delete(
        self,
        kind: str,
        name: str,
        namespace: str = "default",
        *,
        grace_s: int | None = None,
        timeout_s: float | None = 60,
    ) -> None:
        """Delete an object, if it exists, and wait until it is gone (not at all with timeout_s=None)."""
        self.api.delete(kind, name, namespace, grace_s=grace_s, timeout_s=timeout_s)

    def wait_for(self, condition: Callable[[], T | None], *, what: str, timeout_s: float = 60) -> T:
        """Ask until the condition gives something true, and return that; our errors count as "not yet"."""
        return wait_until(condition, what=what, timeout_s=timeout_s, interval_s=0.1, retry_on=(TestbedError,))

    def wait_for_pod(
        self, name: str, namespace: str = "default", *, phase: str = "Ready", timeout_s: float = 60
    ) -> Object:
        """Wait until a pod is Ready (or Pending, Running, Succeeded, Failed), or say what holds it up."""

        def reached() -> Object | None:
            pod = self.api.get("pods", name, namespace)
            return pod if phase in (pod["status"].get("phase"), _readiness(pod)) else None

        try:
            return self.wait_for(reached, what=f"pod {namespace}/{name} to be {phase}", timeout_s=timeout_s)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{self._why(name, namespace)}") from error

    def wait_ready(self, *, timeout_s: float = 60) -> None:
        """Wait until the API server and all nodes are ready."""
        self.wait_for(lambda: self.api.raw("/readyz"), what="the API server", timeout_s=timeout_s)
        self.wait_for(self._are_nodes_ready, what="all nodes to be Ready", timeout_s=timeout_s)

    def wait_node(self, node: str, *, ready: bool, timeout_s: float = 60) -> None:
        """Wait until a node is Ready and its present kubelet answers, or until it is missed."""

        def reached() -> bool:
            found = self.get("nodes", node)
            if not ready:
                return _readiness(found) != "Ready"
            self.api.raw(f"/api/v1/nodes/{node}/proxy/healthz")  # the object may be older than its kubelet
            is_this_life = found["status"]["nodeInfo"]["bootID"] == self.boot_id(node)
            return is_this_life and _readiness(found) == "Ready"

        state = "Ready" if ready else "missed"
        self.wait_for(reached, what=f"{node} to be {state}", timeout_s=timeout_s)

    def exec(
        self,
        pod: str,
        argv: Sequence[str],
        namespace: str = "default",
        *,
        container: str = "",
        stdin: str | None = None,
        timeout_s: float = 60,
    ) -> str:
        """Run a command in a container and return its output; a failure is raised."""
        where = ["-n", namespace]
        where += ["-c", container] if container else []
        where += ["-i"] if stdin is not None else []
        return self.kubectl("exec", "-q", pod, *where, "--", *argv, stdin=stdin, timeout_s=timeout_s)

    def logs(
        self, pod: str, namespace: str = "default", *, container: str = "", previous: bool = False
    ) -> str:
        """What a container has printed."""
        return self.api.log(pod, namespace, container=container, previous=previous)

    def events_of(self, of: Mapping[str, Any]) -> Objects:
        """The events about an object, oldest first."""
        meta = of["metadata"]
        found = self.api.list("events", meta.get("namespace"), fields=f"involvedObject.uid={meta['uid']}")
        return sorted(found, key=lambda event: str(event["metadata"]["creationTimestamp"]))

    def kubectl(self, *args: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        """Run kubectl as administrator and return its output."""
        program = self.binaries.kubernetes / "kubectl"
        return run(program, *args, stdin=stdin, timeout_s=timeout_s, env=self.environment())

    def environment(self) -> dict[str, str]:
        """An environment in which kubectl and other clients mean this cluster."""
        places = f"{self.binaries.kubernetes}:{os.environ.get('PATH', '')}"
        cache = str(self.layout.root / "kubectl-cache")
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": cache, "PATH": places}

    def reboot(self, node: str, *, timeout_s: float = 60) -> None:
        """Power a node off and on, and wait until it is Ready again."""
        self.power_off(node)
        self.power_on(node)
        self.wait_node(node, ready=True, timeout_s=timeout_s)

    def delete_node(self, node: str) -> None:
        """Delete a node's object while the node runs on, without kube-proxy: newer ones end by themselves."""
        self.delete("nodes", node)
        self.stop(f"{node}/{KUBE_PROXY}")

    def rejoin(self, node: str) -> None:
        """Restart kubelet and kube-proxy, which makes a deleted node's object anew, and wait for it."""
        self.restart(f"{node}/{KUBELET}")
        self.restart(f"{node}/{KUBE_PROXY}")
        self.wait_node(node, ready=True)

    def collect(self, folder: Path) -> None:
        """Store all logs and objects in a folder."""
        collect(self, folder)

    def _start(self, images: Sequence[Path]) -> None:
        self._start_storage_and_api()
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(self._first_boot, node, images) for node in self.nodes]
            # The controller manager gives up on a server that is not healthy within 10 s of its own start.
            self._wait_api(controlplane.API_SERVER, lambda: self.api.raw("/healthz"))
            self.start(controlplane.CONTROLLER_MANAGER)
            self.start(controlplane.SCHEDULER)
            for job in jobs:
                job.result()
        for node in self.nodes:
            self.start(f"{node}/{KUBELET}")
        self._wait_api(controlplane.API_SERVER, lambda: self.api.raw("/readyz"))
        for node in self.nodes:
            self.start(f"{node}/{KUBE_PROXY}")
        self._wait_api(controlplane.CONTROLLER_MANAGER, lambda: self.get("serviceaccounts", "default"))
        self._wait_api(f"{self.nodes[-1]}/{KUBELET}", self._are_nodes_ready)

    def _wait_api(self, daemon: str, condition: Callable[[], object]) -> None:
        self._wait(daemon, condition, retry_on=(ApiError,))

    def _are_nodes_ready(self) -> bool:
        ready = {node["metadata"]["name"] for node in self.list("nodes") if _readiness(node) == "Ready"}
        return ready >= set(self.nodes)

    def _why(self, name: str, namespace: str) -> str:
        """What a person would look at when a pod does not get on."""
        try:
            pod = self.get("pods", name, namespace)
            events = [f"{event['reason']}: {event['message']}" for event in self.events_of(pod)]
        except ApiError as error:
            return str(error)
        status = {key: pod["status"].get(key) for key in ("phase", "conditions", "containerStatuses")}
        return "\n".join([f"status: {status}", *events])

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _readiness(of: Object) -> str:
    conditions = {found["type"]: found["status"] for found in of["status"].get("conditions", [])}
    return "Ready" if conditions.get("Ready") == "True" else "NotReady"


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise TestbedError("the test bed makes namespaces, mounts and cgroups: run it as root")
    for name, folder in (("ALIQUOT_TESTBED_CACHE", programs.cache_dir()), ("TESTBED_STATE", state_root())):
        for place in ("/run", "/var/lib", "/var/log"):
            if folder.is_relative_to(place):
                raise TestbedError(f"{name} {folder}: nodes have their own {place}; choose another")
