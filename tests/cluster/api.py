# SPDX-License-Identifier: Apache-2.0
"""A small Kubernetes client: objects are plain dicts, kinds are found by discovery, errors are typed."""

import http.client
import json
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import yaml

from .system import TestbedError, wait_until

Object = dict[str, Any]
Objects = list[Object]
Manifests = str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""YAML text, a YAML file, one object, or several."""

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
_FIELD_MANAGER = "testbed"


class ApiError(TestbedError):
    """The API server said no, or (status 0) was not reached."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of the server."""

    group: str
    version: str
    plural: str
    kind: str
    names: frozenset[str]
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "") -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace)}" if self.namespaced and namespace else ""
        return f"{base}{scope}/{self.plural}" + (f"/{quote(name)}" if name else "")


def read_manifests(manifests: Manifests) -> Objects:
    """The objects in whatever form they were given."""
    if isinstance(manifests, Path):
        manifests = manifests.read_text()
    if isinstance(manifests, str):
        manifests = [found for found in yaml.safe_load_all(manifests) if found]
    elif isinstance(manifests, Mapping):
        manifests = [manifests]
    objects: Objects = []
    for found in manifests:
        objects.extend(found["items"] if found.get("kind", "").endswith("List") else [dict(found)])
    return objects


class Api:
    """One server, as the user of a kubeconfig's certificate. Safe to use from several threads."""

    def __init__(self, *, server: str, authority: Path, certificate: Path, key: Path) -> None:
        self._address = urlsplit(server).netloc
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(certificate, key)
        self._kinds: list[Kind] = []

    def raw(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> bytes:
        """One request; what is not a success is raised."""
        connection = http.client.HTTPSConnection(self._address, timeout=timeout_s, context=self._tls)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status < 300:
            return content
        try:
            status = json.loads(content)
            raise ApiError(response.status, status.get("reason", response.reason), status.get("message", ""))
        except (ValueError, AttributeError):
            text = content.decode(errors="replace").strip()
            raise ApiError(response.status, response.reason, text or f"{method} {path}") from None

    def kind(self, name: str) -> Kind:
        """The resource by any of its names: "pods", "po", "Pod", "deployments.apps"."""
        wanted, _, group = name.lower().partition(".")
        for attempt in ("known", "asked again"):
            if attempt == "asked again" or not self._kinds:
                self._kinds = [*self._discover()]
            for kind in self._kinds:
                if wanted in kind.names and group in ("", kind.group):
                    return kind
        raise TestbedError(f"the server has no resource {name!r}")

    def kinds(self) -> Sequence[Kind]:
        """Everything the server can list, in its preferred versions."""
        self._kinds = [*self._discover()]
        return [*self._kinds]

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        """One object."""
        return _object(self.raw(self.kind(kind).path(namespace, name)))

    def list(self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Objects:
        """Objects of a kind, in one namespace or in all."""
        query = {key: text for key, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}
        found = self.kind(kind)
        answer = _object(self.raw(f"{found.path(namespace or '')}?{urlencode(query)}"))
        return [{"apiVersion": found.api_version, "kind": found.kind, **item} for item in answer["items"]]

    def create(
        self, manifest: Mapping[str, Any], *, namespace: str = "default", dry_run: bool = False
    ) -> Object:
        """Create one object; an existing one is an error (409)."""
        path = self._kind_of(manifest).path(_namespace(manifest, namespace))
        return self._send("POST", f"{path}{'?dryRun=All' if dry_run else ''}", manifest, "application/json")

    def apply(self, manifests: Manifests, *, namespace: str = "default") -> Objects:
        """Create or change objects, server-side, in the order given; returns them as they are now."""
        return [self._apply(manifest, namespace) for manifest in read_manifests(manifests)]

    def patch(
        self,
        kind: str,
        name: str,
        change: Mapping[str, Any],
        namespace: str = "default",
        *,
        subresource: str = "",
    ) -> Object:
        """Merge a change into an object."""
        path = self.kind(kind).path(namespace, name) + (f"/{subresource}" if subresource else "")
        return self._send("PATCH", path, change, "application/merge-patch+json")

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
        path = self.kind(kind).path(namespace, name)
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._send("DELETE", path, options, "application/json")
        except ApiError as error:
            if error.status != 404:
                raise
            return
        if timeout_s is not None:
            wait_until(lambda: self._is_gone(path), what=f"{kind} {name} to be gone", timeout_s=timeout_s)

    def delete_all(
        self, manifests: Manifests, *, namespace: str = "default", timeout_s: float | None = 60
    ) -> None:
        """Delete the objects of these manifests, last first."""
        for manifest in reversed(read_manifests(manifests)):
            where = _namespace(manifest, namespace)
            kind = self._kind_of(manifest)
            name = manifest["metadata"]["name"]
            self.delete(f"{kind.plural}.{kind.group}", name, where, timeout_s=timeout_s)

    def log(
        self, pod: str, namespace: str = "default", *, container: str = "", previous: bool = False
    ) -> str:
        """What a container has printed."""
        query = {"container": container} if container else {}
        query |= {"previous": "true"} if previous else {}
        path = self.kind("pods").path(namespace, pod)
        return self.raw(f"{path}/log?{urlencode(query)}").decode(errors="replace")

    def _apply(self, manifest: Mapping[str, Any], namespace: str) -> Object:
        kind = self._kind_of(manifest)
        path = kind.path(_namespace(manifest, namespace), manifest["metadata"]["name"])
        query = urlencode({"fieldManager": _FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"})
        return self._send("PATCH", f"{path}?{query}", manifest, "application/apply-patch+yaml")

    def _kind_of(self, manifest: Mapping[str, Any]) -> Kind:
        """A manifest's kind, in the version it says."""
        group, _, version = manifest["apiVersion"].rpartition("/")
        found = self.kind(f"{manifest['kind']}.{group}" if group else manifest["kind"])
        return Kind(found.group, version, found.plural, found.kind, found.names, found.namespaced)

    def _send(self, method: str, path: str, body: Mapping[str, Any], content_type: str) -> Object:
        headers = {"Content-Type": content_type}
        return _object(self.raw(path, method=method, body=json.dumps(body).encode(), headers=headers))

    def _is_gone(self, path: str) -> bool:
        try:
            self.raw(path)
        except ApiError as error:
            return error.status == 404
        return False

    def _discover(self) -> Iterable[Kind]:
        for root in ("/api", "/apis"):
            answer = _object(self.raw(root, headers={"Accept": _DISCOVERY}))
            for group in answer["items"]:
                yield from _kinds_of(group)


def _kinds_of(group: Object) -> Iterable[Kind]:
    seen: set[str] = set()
    for version in group["versions"]:  # the preferred one first
        for resource in version.get("resources", []):
            plural = resource["resource"]
            if plural in seen or "list" not in resource["verbs"]:
                continue
            seen.add(plural)
            kind = resource["responseKind"]["kind"]
            names = {plural, resource["singularResource"], kind.lower(), *resource.get("shortNames", [])}
            yield Kind(
                group=group["metadata"].get("name", ""),
                version=version["version"],
                plural=plural,
                kind=kind,
                names=frozenset(names),
                namespaced=resource["scope"] == "Namespaced",
            )


def _namespace(manifest: Mapping[str, Any], default: str) -> str:
    return str(manifest["metadata"].get("namespace", default))


def _object(content: bytes) -> Object:
    answer = json.loads(content)
    assert isinstance(answer, dict)
    return answer
