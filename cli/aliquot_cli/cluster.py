# SPDX-License-Identifier: Apache-2.0
"""The cluster that a command talks to, by the user's own kubeconfig. The one module that reads it."""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Final

from kubernetes import client, config

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, obj, text
from aliquot_webhook.kube import ApiError, Kube, ListApi

RESOURCES: Final = "/apis/resource.k8s.io/v1"
SYSTEM_NAMESPACE: Final = "aliquot-system"
_TIMEOUT_S: Final = 15.0


class ClusterError(OSError):
    """The API server did not do what was asked."""


def command(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command whose errors from the API server are worded for people."""

    @functools.wraps(run)
    def worded(arguments: argparse.Namespace) -> int:
        """Runs it."""
        try:
            return run(arguments)
        except ApiError as error:
            said = (
                f"the API server says {error.status}" if error.status else "the API server cannot be reached"
            )
            raise ClusterError(f"{said}: {error}") from error

    return worded


def add_cluster_options(parser: argparse.ArgumentParser, *, namespaced: bool = True) -> None:
    """Which cluster, as kubectl names these options."""
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, else ~/.kube/config")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument(
        "--system-namespace",
        default=SYSTEM_NAMESPACE,
        metavar="NAME",
        help=f"where Aliquot runs (default {SYSTEM_NAMESPACE})",
    )
    if namespaced:
        parser.add_argument("-n", "--namespace", metavar="NAME", help="default: that of the context")


def connect(arguments: argparse.Namespace) -> Kube:
    """The cluster of a command line. Raises InvalidInput where the kubeconfig names none."""
    configuration = client.Configuration()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]  # the package is untyped there
            config_file=arguments.kubeconfig, context=arguments.context, client_configuration=configuration
        )
    except config.ConfigException as error:
        raise InvalidInput(
            field="--kubeconfig",
            value=arguments.kubeconfig or os.environ.get("KUBECONFIG", "~/.kube/config"),
            fix=f"want a kubeconfig that names a cluster ({error})",
        ) from error
    return Kube(configuration=configuration, timeout_s=_TIMEOUT_S)


def namespace_of(arguments: argparse.Namespace) -> str:
    """`-n`, else the context's namespace, else `default`."""
    if arguments.namespace:
        return str(arguments.namespace)
    with contextlib.suppress(config.ConfigException):
        contexts, active = config.list_kube_config_contexts(config_file=arguments.kubeconfig)  # type: ignore[no-untyped-call]  # untyped there
        chosen = next((each for each in contexts if each["name"] == arguments.context), active)
        return text(obj(obj(chosen).get("context")).get("namespace")) or "default"
    return "default"


def optional_list(api: ListApi, path: str, query: Mapping[str, str] | None = None) -> list[JsonObject]:
    """All objects at a path that the server may not serve, or the user not read: none then."""
    try:
        return api.list_all(path, query or {})[0]
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise


def optional_get(api: ListApi, path: str) -> JsonObject | None:
    """One object, None where there is none."""
    try:
        return api.call("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def meta(of: object, key: str) -> str:
    """A word of an object's metadata."""
    return text(obj(obj(of).get("metadata")).get(key))
