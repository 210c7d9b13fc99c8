# SPDX-License-Identifier: Apache-2.0
"""An API server in memory: objects by path, versions, preconditions, dry runs, and a log of the calls."""

import copy
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from aliquot_api import names
from aliquot_api.wire import JsonObject
from aliquot_webhook.kube import ApiError, Keep, Method, whole
from aliquot_webhook.templates import ROOT
from tests.unit.webhook import kit

CLASS_PATH = f"{ROOT}/deviceclasses/{names.DEVICE_CLASS}"


class FakeApi:
    """Thread-safe. `forbidden` holds (method, part of a path); `down` answers nothing at all."""

    def __init__(self, *, minor: str = "37", gate: bool = True) -> None:
        self.objects: dict[str, dict[str, Any]] = {"/version": {"major": "1", "minor": minor}}
        self.calls: list[tuple[str, str]] = []
        self.forbidden: set[tuple[str, str]] = set()
        self.down = False
        self._gate = gate
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        self.put(CLASS_PATH, {"metadata": {"name": names.DEVICE_CLASS}})

    def put(self, path: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store an object behind everybody's back."""
        value = copy.deepcopy(value)
        metadata = value.setdefault("metadata", {})
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[path] = value
        return value

    def writes(self) -> list[tuple[str, str]]:
        """The calls that were no reads."""
        return [call for call in self.calls if call[0] != "GET"]

    def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[object] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """One request."""
        with self._lock:
            self.calls.append((method, path))
            if self.down:
                raise ApiError(status=0, message="connection refused")
            if any(method == verb and part in path for verb, part in self.forbidden):
                raise ApiError(status=403, message=f"{path} is forbidden: User cannot {method}")
            return copy.deepcopy(self._answer(method, path, query or {}, copy.deepcopy(body), content_type))

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        """All objects of a kind below `path`, in all namespaces or in one."""
        with self._lock:
            self.calls.append(("GET", path))
            prefix, _, plural = path.rpartition("/")
            found = [
                copy.deepcopy(value)
                for key, value in sorted(self.objects.items())
                if key.startswith(prefix) and key.rpartition("/")[0].rpartition("/")[2] == plural
            ]
            kept = [one for each in found if (one := keep(each)) is not None]
            return kept, str(next(self._versions))

    def _answer(
        self, method: Method, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> dict[str, Any]:
        if method == "POST":
            return self._create(path, query, body)
        live = self.objects.get(path)
        if live is None:
            name = unquote(path.rpartition("/")[2])
            raise ApiError(status=404, message=f'"{name}" not found')
        version = live.get("metadata", {}).get("resourceVersion")
        if method == "DELETE":
            wanted = body["preconditions"]
            if any(live["metadata"].get(k) != v for k, v in wanted.items()):
                raise ApiError(status=409, message="the precondition failed")
            del self.objects[path]
            return {}
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != version:
                raise ApiError(status=409, message="the object has been modified")
            return self.put(path, body)
        if method == "PATCH":
            seen = dict(body.get("metadata", {})).get("resourceVersion") if isinstance(body, dict) else None
            if seen not in (None, version):
                raise ApiError(status=409, message="the object has been modified")
            changed = kit.apply(live, body) if "json-patch" in content_type else _merge(live, body)
            assert isinstance(changed, dict)
            return self.put(path, changed)
        return live

    def _create(self, path: str, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        metadata = body["metadata"]
        metadata.setdefault("name", metadata.get("generateName", "") + "x")
        if "/namespaces/" in path:
            metadata["namespace"] = path.split("/namespaces/")[1].split("/", maxsplit=1)[0]
        if path.endswith("/resourceclaimtemplates"):
            for request in body["spec"]["spec"]["devices"]["requests"]:
                request["exactly"]["tolerations"] = []  # a later server's default
                if not self._gate:
                    del request["exactly"]["capacity"]
        full = f"{path}/{metadata['name']}"
        if full in self.objects:
            raise ApiError(status=409, message=f'"{metadata["name"]}" already exists')
        if query.get("dryRun") == "All":
            return dict(body)
        return self.put(full, body)


def _merge(live: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    result = dict(live) if isinstance(live, dict) else {}
    for key, value in change.items():
        result[key] = _merge(result.get(key), value)
    return result
