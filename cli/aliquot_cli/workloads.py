# SPDX-License-Identifier: Apache-2.0
"""Pods of what a user names: a pod, a workload, or a manifest of one."""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import yaml

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli.cluster import meta, optional_list
from aliquot_cli.gathering import events_of
from aliquot_webhook.kube import ListApi

_PATHS: Final[Mapping[str, tuple[str, str]]] = {
    "pod": ("/api/v1", "pods"),
    "deployment": ("/apis/apps/v1", "deployments"),
    "replicaset": ("/apis/apps/v1", "replicasets"),
    "statefulset": ("/apis/apps/v1", "statefulsets"),
    "daemonset": ("/apis/apps/v1", "daemonsets"),
    "job": ("/apis/batch/v1", "jobs"),
}
_SHORT: Final = {
    "po": "pod",
    "deploy": "deployment",
    "rs": "replicaset",
    "sts": "statefulset",
    "ds": "daemonset",
}
_TEMPLATES: Final = ("ResourceClaimTemplate", "ResourceClaim")


def read_target(words: Sequence[str]) -> tuple[str, str]:
    """`pod NAME`, `pod/NAME`, `deploy/NAME` or `NAME` as kind and name. Raises InvalidInput."""
    given = "/".join(words)
    kind, slash, name = given.rpartition("/")
    kind = _SHORT.get(kind.lower(), kind.lower().removesuffix("s")) if slash else "pod"
    if kind not in _PATHS or not name:
        raise InvalidInput(
            field="TARGET", value=given, fix=f"want NAME of a pod, or one of {', '.join(_PATHS)}/NAME"
        )
    return kind, name


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Where objects of a kind are."""
    root, plural = _PATHS[kind]
    return f"{root}/namespaces/{quote(namespace)}/{plural}" + (f"/{quote(name)}" if name else "")


def pods_of(api: ListApi, kind: str, namespace: str, name: str) -> tuple[list[JsonObject], list[str]]:
    """The living pods of a workload, and why some could not be created (from its newest events)."""
    owner = api.call("GET", path_of(kind, namespace, name))
    if kind == "pod":
        return [owner], []
    owners = [owner]
    if kind == "deployment":
        sets = optional_list(api, path_of("replicaset", namespace))
        owners += [each for each in sets if _is_owned(each, [owner]) and dig(each, "spec", "replicas")]
    pods = optional_list(api, path_of("pod", namespace))
    failures = [
        text(event.get("message"))
        for event in events_of(api, namespace, owners)
        if text(event.get("reason")) == "FailedCreate"
    ]
    return [pod for pod in pods if _is_owned(pod, owners)], list(dict.fromkeys(failures[-3:]))


def _is_owned(of: JsonObject, owners: Sequence[JsonObject]) -> bool:
    uids = {meta(each, "uid") for each in owners}
    return any(dig(each, "uid") in uids for each in items(dig(of, "metadata", "ownerReferences")))


def read_manifest(written: str, *, namespace: str) -> tuple[list[JsonObject], dict[str, JsonObject]]:
    """The pods that a manifest would make, one for each workload, and the specs of its claims and templates.

    Raises InvalidInput for what is no YAML or has no pod in it.
    """
    try:
        documents = [obj(each) for each in yaml.safe_load_all(written) if each]
    except yaml.YAMLError as error:
        raise InvalidInput(field="-f", value=written[:40], fix=f"want YAML or JSON: {error}") from error
    objects = [
        obj(each)
        for document in documents
        for each in (
            items(document.get("items")) if text(document.get("kind")).endswith("List") else [document]
        )
    ]
    known = {
        meta(each, "name"): obj(dig(each, "spec", "spec")) or obj(each.get("spec"))
        for each in objects
        if each.get("kind") in _TEMPLATES
    }
    pods = [pod for each in objects if (pod := _pod(each, namespace)) is not None]
    if not pods:
        raise InvalidInput(field="-f", value=written[:40], fix="want a Pod, or something with a pod template")
    return pods, known


def _pod(of: JsonObject, namespace: str) -> JsonObject | None:
    metadata, spec = obj(of.get("metadata")), obj(of.get("spec"))
    if of.get("kind") != "Pod":
        template = dig(spec, "jobTemplate", "spec", "template") or spec.get("template")
        if not dig(template, "spec", "containers"):
            return None
        inner = {
            key: dig(template, "metadata", key)
            for key in ("labels", "annotations")
            if dig(template, "metadata", key)
        }
        metadata = {**inner, "generateName": f"{meta(of, 'name')}-", "namespace": metadata.get("namespace")}
        spec = obj(dig(template, "spec"))
    named = {key: value for key, value in metadata.items() if value is not None}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, **named}, "spec": spec}
