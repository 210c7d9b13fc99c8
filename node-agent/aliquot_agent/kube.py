# SPDX-License-Identifier: Apache-2.0
"""The API server as the agent needs it: a few calls on plain dicts, each with a timeout, no client limit.

Plain dicts because typed models drop fields they do not know, and the publisher must see what the server
dropped. The only module that talks to the package `kubernetes`, whose configuration and watch have no types.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config, watch

from aliquot_agent.errors import ApiError
from aliquot_agent.plainhttp import PlainHttp
from aliquot_agent.trust import Trust
from aliquot_api.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

_RESOURCES: Final = f"/apis/{RESOURCE_GROUP}/{RESOURCE_VERSION}"
_SLICES: Final = f"{_RESOURCES}/resourceslices"
_PODS: Final = "/api/v1/pods"
_CONNECTIONS: Final = 32


def connect(kubeconfig: Path | None) -> "Kube":
    """A client from a kubeconfig, or from the pod's service account."""
    configuration = client.Configuration()
    if kubeconfig is None:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = _CONNECTIONS
    return Kube(api_client=client.ApiClient(configuration))


class Kube:
    """Calls on behalf of one node. Thread-safe."""

    def __init__(self, *, api_client: client.ApiClient, timeout_s: float = 10.0) -> None:
        self._client = api_client
        self._timeout_s = timeout_s
        self._plain = _plain(api_client.configuration, timeout_s=timeout_s)

    def server_minor(self) -> int:
        """37 for Kubernetes 1.37."""
        minor = str(self._call("GET", "/version")["minor"])
        return int("".join(character for character in minor if character.isdigit()))

    def get_node(self, name: str) -> Object:
        """The Node object."""
        return self._call("GET", f"/api/v1/nodes/{quote(name)}")

    def get_claim(self, namespace: str, name: str) -> Object:
        """A ResourceClaim; each Prepare waits for it."""
        path = _claim_path(namespace, name)
        if self._plain is None:
            return self._call("GET", path)
        return _answer(partial(self._plain.get, path))

    def apply_claim_status(self, namespace: str, name: str, body: Object, *, manager: str) -> None:
        """Server-side apply of a claim's status."""
        path, kind = f"{_claim_path(namespace, name)}/status", "application/apply-patch+yaml"
        query = {"fieldManager": manager, "force": "true"}
        if self._plain is None:
            self._call("PATCH", path, query=query, body=body, content_type=kind)
            return
        data = json.dumps(body).encode()
        _answer(partial(self._plain.patch, f"{path}?{urlencode(query)}", data, content_type=kind))

    def list_claims(self) -> list[Object]:
        """All ResourceClaims, as they are now."""
        return list(self._call("GET", f"{_RESOURCES}/resourceclaims").get("items") or [])

    def list_pods(self, node: str) -> tuple[list[Object], str]:
        """The pods of a node, and the resourceVersion to watch from."""
        answer = self._call("GET", _PODS, query={"fieldSelector": f"spec.nodeName={node}"})
        return list(answer.get("items") or []), str(answer["metadata"]["resourceVersion"])

    def get_pod(self, namespace: str, name: str) -> Object:
        """A Pod."""
        return self._call("GET", f"{_namespace(namespace)}/pods/{quote(name)}")

    def pod_watch(self, node: str) -> "Watch":
        """A watch on the pods of a node."""
        return Watch(api_client=self._client, path=_PODS, selector=f"spec.nodeName={node}")

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Asks for the eviction of exactly this pod; ApiError 429 where its disruption budget forbids it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._call("POST", f"{_namespace(namespace)}/pods/{quote(name)}/eviction", body=body)

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Deletes exactly this pod."""
        path = f"{_namespace(namespace)}/pods/{quote(name)}"
        self._call("DELETE", path, body={"preconditions": {"uid": uid}})

    def get_config_map(self, namespace: str, name: str) -> Object:
        """A ConfigMap."""
        return self._call("GET", f"{_namespace(namespace)}/configmaps/{quote(name)}")

    def config_map_watch(self, namespace: str, name: str) -> "Watch":
        """A watch on one ConfigMap; it begins with the ConfigMap as it stands."""
        path = f"{_namespace(namespace)}/configmaps"
        return Watch(api_client=self._client, path=path, selector=f"metadata.name={name}")

    def create_event(self, event: Object) -> Object:
        """Creates an Event."""
        return self._call("POST", f"{_namespace(event['metadata']['namespace'])}/events", body=event)

    def patch_event(self, namespace: str, name: str, change: Object) -> None:
        """Merges `change` into an Event."""
        path = f"{_namespace(namespace)}/events/{quote(name)}"
        self._call("PATCH", path, body=change, content_type="application/merge-patch+json")

    def list_node_slices(self, node: str) -> list[Object]:
        """The slices of a node, of all drivers."""
        answer = self._call("GET", _SLICES, query={"fieldSelector": f"spec.nodeName={node}"})
        return list(answer.get("items") or [])

    def list_slices(self, node: str) -> tuple[list[Object], str]:
        """Our slices of a node, and the resourceVersion to watch from."""
        answer = self._call("GET", _SLICES, query={"fieldSelector": _own_slices(node)})
        return list(answer.get("items") or []), str(answer["metadata"]["resourceVersion"])

    def create_slice(self, body: Object, *, dry_run: bool = False) -> Object:
        """Creates a slice; answers it as the server stored it, or would."""
        return self._call("POST", _SLICES, query={"dryRun": "All"} if dry_run else {}, body=body)

    def replace_slice(self, body: Object) -> Object:
        """Replaces the slice of that name and resourceVersion."""
        return self._call("PUT", f"{_SLICES}/{quote(body['metadata']['name'])}", body=body)

    def delete_slice(self, slice_: Object) -> None:
        """Deletes exactly this version of the slice."""
        metadata = slice_["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        self._call("DELETE", f"{_SLICES}/{quote(metadata['name'])}", body={"preconditions": preconditions})

    def slice_watch(self, node: str) -> "Watch":
        """A watch on our slices of a node."""
        return Watch(api_client=self._client, path=_SLICES, selector=_own_slices(node))

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        response = _send(
            self._client,
            method,
            path,
            query=query or {},
            body=body,
            content_type=content_type,
            timeout=(self._timeout_s, self._timeout_s),
        )
        try:
            data = response.data  # reads it, within the timeout
        except urllib3.exceptions.HTTPError as error:
            raise _no_answer(error) from error
        finally:
            response.release_conn()
        return _object(response.status, data)


class Watch:
    """One watch, for one thread; `stop` may be called from another."""

    def __init__(self, *, api_client: client.ApiClient, path: str, selector: str) -> None:
        self._client = api_client
        self._path = path
        self._selector = selector
        self._stopped = threading.Event()
        self._response: urllib3.BaseHTTPResponse | None = None

    def stop(self) -> None:
        """Ends the iteration, also one that waits for the server."""
        self._stopped.set()
        response = self._response
        if response is not None:
            with suppress(ValueError, OSError):  # it has ended by itself
                response.shutdown()

    def follow(self, resource_version: str, *, timeout_s: int) -> Iterator[tuple[str, Object]]:
        """Pairs (ADDED | MODIFIED | DELETED, object) until the server or `stop` ends it; raises ApiError.

        Without a version it begins with what there is, as ADDED.
        """

        def open_stream(**_: object) -> urllib3.BaseHTTPResponse:
            """The request as kubernetes.watch calls it."""
            query = {
                "fieldSelector": self._selector,
                **({"resourceVersion": resource_version} if resource_version else {}),
                "timeoutSeconds": str(timeout_s),
                "watch": "true",
            }
            response = _send(self._client, "GET", self._path, query=query, timeout=(5, timeout_s + 10))
            self._response = response
            if self._stopped.is_set():
                response.shutdown()
            return response

        stream = watch.Watch(return_type="object")  # type: ignore[no-untyped-call]
        try:
            events = stream.stream(open_stream, timeout_seconds=timeout_s)  # type: ignore[no-untyped-call]
            for event in events:
                if self._stopped.is_set():
                    return
                yield str(event["type"]), dict(event["object"])
        except client.ApiException as error:
            raise ApiError(status=int(error.status or 0), message=str(error.reason)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _no_answer(error) from error
        finally:
            self._response = None


def _send(
    api_client: client.ApiClient,
    method: str,
    path: str,
    *,
    query: Mapping[str, str],
    timeout: tuple[float, float],
    body: Object | None = None,
    content_type: str = "application/json",
) -> urllib3.BaseHTTPResponse:
    serialized = api_client.param_serialize(
        method,
        path,
        query_params=list(query.items()),
        header_params={"Accept": "application/json", "Content-Type": content_type},
        body=body,
        auth_settings=["BearerToken"],
    )
    try:
        response = api_client.call_api(*serialized, _request_timeout=timeout)
    except client.ApiException as error:
        raise ApiError(status=int(error.status or 0), message=str(error.reason)) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _no_answer(error) from error
    raw: urllib3.BaseHTTPResponse = response.response
    return raw


def _plain(configuration: client.Configuration, *, timeout_s: float) -> PlainHttp | None:
    """What asks without the layers of the package; None for ways to a server that only it knows."""
    if configuration.proxy or configuration.assert_hostname is not None or configuration.tls_server_name:
        return None

    def made() -> ssl.SSLContext:
        """As the package makes it."""
        context = urllib3.util.create_urllib3_context()
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif configuration.ssl_ca_cert or configuration.ca_cert_data:
            context.load_verify_locations(configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
        else:
            context.load_default_certs()
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        return context

    def headers() -> dict[str, str]:
        """With the token of now: it is renewed."""
        found = {"Accept": "application/json", "User-Agent": "aliquot-agent"}
        token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return found | {"Authorization": token} if token else found

    made_of = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    trust = Trust(make=made, files=filter(None, made_of))
    return PlainHttp(server=configuration.host, tls=trust.context, headers=headers, timeout_s=timeout_s)


def _answer(ask: Callable[[], tuple[int, bytes]]) -> Object:
    """The object that a request is answered with; raises ApiError."""
    try:
        status, data = ask()
    except OSError as error:
        raise _no_answer(error) from error
    return _object(status, data)


def _object(status: int, data: bytes) -> Object:
    """The object of an answer; raises ApiError."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise ApiError(status=status, message=data[:200].decode(errors="replace")) from error
    if not 200 <= status < 300:
        raise ApiError(status=status, message=str(answer.get("message", answer)))
    return dict(answer)


def _no_answer(error: Exception) -> ApiError:
    """Without urllib3's retelling of the whole request."""
    return ApiError(status=0, message=str(getattr(error, "reason", error)))


def _claim_path(namespace: str, name: str) -> str:
    return f"{_RESOURCES}/namespaces/{quote(namespace)}/resourceclaims/{quote(name)}"


def _namespace(name: str) -> str:
    return f"/api/v1/namespaces/{quote(name)}"


def _own_slices(node: str) -> str:
    return f"spec.nodeName={node},spec.driver={DRIVER}"
