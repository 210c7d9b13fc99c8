# SPDX-License-Identifier: Apache-2.0
"""Changes the node configuration (ConfigMap aliquot-node-config): one entry of ours, in and out.

What is written is read first as the agents read it, so that no change of ours can be one that they refuse.
Comments in the document do not survive.
"""

from collections.abc import Callable
from typing import Any, Final

import yaml

from aliquot_agent import nodeconfig
from aliquot_api.wire import dig, items, obj, text
from aliquot_cli.cluster import optional_get
from aliquot_webhook.kube import MERGE_PATCH, ListApi

NAME: Final = "aliquot-node-config"
KEY: Final = "config.yaml"
_EMPTY: Final = {"apiVersion": nodeconfig.API_VERSION, "kind": nodeconfig.KIND}


def unpublished(document: str, node: str, uuid: str) -> str:
    """The document with a last word for this GPU: it is not published."""
    body = _read(document)
    body["nodes"] = [*items(body.get("nodes")), _entry(node, uuid)]
    return _written(body)


def published(document: str, uuid: str) -> str:
    """The document without such an entry; the same text where there is none."""
    body = _read(document)
    kept = [each for each in items(body.get("nodes")) if not _is_entry(each, uuid)]
    if len(kept) == len(items(body.get("nodes"))):
        return document
    body["nodes"] = kept
    if not kept:
        del body["nodes"]
    return _written(body)


def change(api: ListApi, namespace: str, changed: Callable[[str], str]) -> bool:
    """Writes what `changed` makes of the document, naming the version it was made from; whether it differs.

    Raises ApiError, 409 where somebody else was quicker.
    """
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    found = optional_get(api, f"{path}/{NAME}")
    before = text(dig(found, "data", KEY))
    after = changed(before)
    if after == before:
        return False
    if found is None:
        metadata = {"name": NAME, "namespace": namespace}
        api.call(
            "POST",
            path,
            body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: after}},
        )
        return True
    version = text(dig(found, "metadata", "resourceVersion"))
    body = {"metadata": {"resourceVersion": version}, "data": {KEY: after}}
    api.call("PATCH", f"{path}/{NAME}", body=body, content_type=MERGE_PATCH)
    return True


def _entry(node: str, uuid: str) -> dict[str, object]:
    return {"names": [node], "gpus": [{"match": [uuid], "publish": False}]}


def _is_entry(entry: object, uuid: str) -> bool:
    """Whether we wrote this entry, for a GPU whose UUID begins so."""
    nodes = [text(each) for each in items(dig(entry, "names"))]
    matches = [text(each) for gpu in items(dig(entry, "gpus")) for each in items(dig(gpu, "match"))]
    if len(nodes) != 1 or len(matches) != 1:
        return False
    return matches[0].lower().startswith(uuid.lower()) and entry == _entry(nodes[0], matches[0])


def _read(document: str) -> dict[str, Any]:
    if not document:
        return dict(_EMPTY)
    nodeconfig.decode(document)
    return dict(obj(yaml.safe_load(document)))


def _written(body: dict[str, Any]) -> str:
    document = yaml.safe_dump(body, sort_keys=False)
    nodeconfig.decode(document)
    return document
