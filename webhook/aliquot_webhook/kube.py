# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API as plain JSON over pooled connections, each call with a timeout.

The package `kubernetes` finds and refreshes the credentials; its models are not used, because they drop
fields that they do not know, and what a server dropped is exactly what we have to notice.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, Protocol, Self
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from aliquot_api.wire import JsonObject, dig, items, obj, text

logger = logging.getLogger(__name__)

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
WATCH_S: Final = 60
"""The server ends a watch after this time; silence for longer is a dead connection."""
_PAGE: Final = "500"

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


Keep = Callable[[JsonObject], JsonObject | None]
"""What of a list's object is kept; None for nothing. Of ten thousand objects the rest would be a lot."""


def whole(each: JsonObject) -> JsonObject:
    """All of it."""
    return each


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, *, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Api(Protocol):
    """The API server, for who reads and writes single objects (Kube)."""

    def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[object] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """One request; raises ApiError."""


class ListApi(Api, Protocol):
    """The API server, for who reads lists as well (Kube)."""

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        """What is kept of all objects at `path`, and the version of the list; raises ApiError."""


class Watch:
    """An open watch: iterate over its events; close() from another thread ends the iteration."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[JsonObject]:
        pending = b""
        try:
            for chunk in self._response.stream(65536):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield obj(json.loads(line))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._closed:
                raise ApiError(status=0, message=f"watch broke: {error}") from error

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        shutdown = getattr(self._response, "shutdown", None)
        try:
            if shutdown is not None:
                shutdown()
        except (OSError, ValueError, RuntimeError):
            logger.debug("watch was closed already")


class Kube:
    """A connection to one API server. Safe to use from many threads."""

    def __init__(self, *, configuration: client.Configuration, timeout_s: float) -> None:
        self._configuration = configuration
        self._pool = client.rest.RESTClientObject(configuration).pool_manager
        self._timeout_s = timeout_s

    @classmethod
    def connect(cls, *, kubeconfig: str | None, timeout_s: float) -> Self:
        """From a kubeconfig file, or without one from the pod's service account. Makes no call."""
        configuration = client.Configuration()
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # untyped there
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call] # untyped there
                config_file=kubeconfig, client_configuration=configuration
            )
        configuration.connection_pool_maxsize = 16
        return cls(configuration=configuration, timeout_s=timeout_s)

    def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[object] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """One request; the answer's JSON object. Raises ApiError for anything but success."""
        with self._request(
            method, path, query=query, body=body, content_type=content_type, read_timeout_s=self._timeout_s
        ) as response:
            return _decode(response)

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        """What is kept of all objects at `path`, page by page, and the resourceVersion to watch from.

        Without `managedFields`: nobody here reads them, and of thousands of objects they are a large part.
        """
        found: list[JsonObject] = []
        page = {**query, "limit": _PAGE}
        while True:
            answer = self.call("GET", path, query=page)
            for each in items(answer.get("items")):
                metadata = dig(each, "metadata")
                if isinstance(metadata, dict):
                    metadata.pop("managedFields", None)
                kept = keep(obj(each))
                if kept is not None:
                    found.append(kept)
            following = text(dig(answer, "metadata", "continue"))
            if not following:
                return found, text(dig(answer, "metadata", "resourceVersion"))
            page["continue"] = following

    @contextmanager
    def watch(self, path: str, query: Mapping[str, str], *, version: str) -> Iterator[Watch]:
        """Changes at `path` since `version`."""
        full = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with self._request("GET", path, query=full, read_timeout_s=WATCH_S + 15.0) as response:
            if response.status != 200:
                _decode(response)
            yield Watch(response)

    @contextmanager
    def _request(
        self,
        method: Method,
        path: str,
        *,
        read_timeout_s: float,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[object] | None = None,
        content_type: str = "application/json",
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        url = f"{self._configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        # Reading the settings refreshes a service account token that has rotated.
        headers = {"Accept": "application/json", "User-Agent": "aliquot"}
        for setting in map(obj, self._configuration.auth_settings().values()):
            if setting.get("in") == "header" and setting.get("value"):
                headers[text(setting.get("key"))] = text(setting.get("value"))
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else _encode(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=self._timeout_s, read=read_timeout_s),
                # A kept-alive connection may have been closed under us: once more. All our writes may be
                # repeated.
                retries=urllib3.Retry(total=1, redirect=0, status=0, allowed_methods=None),
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(status=0, message=f"{method} {path}: {error}") from error
        try:
            yield response
        finally:
            # A read answer leaves its connection to the next call, an unread one (a watch) does not.
            response.close()


def _decode(response: urllib3.BaseHTTPResponse) -> JsonObject:
    try:
        answer = obj(json.loads(response.read()))
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        raise ApiError(status=response.status, message=f"unreadable answer: {error}") from error
    if not 200 <= response.status < 300:
        message = text(answer.get("message")) or f"HTTP status {response.status}"
        raise ApiError(status=response.status, message=message)
    return answer


def _encode(body: Mapping[str, object] | Sequence[object]) -> str:
    """Compact JSON with sorted keys.

    The server keeps opaque parameters byte for byte and copies them into the allocation, which is immutable:
    written any other way, each later patch of the claim's status would seem to change it, and be refused.
    """
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
