# SPDX-License-Identifier: Apache-2.0
"""DeviceTaintRules (KEP-5055): `v1` from Kubernetes 1.37, `v1beta2` on 1.36 behind a gate."""

from typing import Final

from aliquot_api.wire import JsonObject, dig, items
from aliquot_cli.cluster import optional_get, optional_list
from aliquot_webhook.kube import ListApi

GROUP: Final = "resource.k8s.io"
_VERSIONS: Final = ("v1", "v1beta2")


def served_version(api: ListApi) -> str | None:
    """The version in which the server has them; None where it has not."""
    for version in _VERSIONS:
        found = optional_get(api, f"/apis/{GROUP}/{version}")
        if any(dig(each, "name") == "devicetaintrules" for each in items(dig(found, "resources"))):
            return version
    return None


def rules_path(version: str) -> str:
    """Where they are."""
    return f"/apis/{GROUP}/{version}/devicetaintrules"


def list_rules(api: ListApi) -> list[JsonObject]:
    """All of them; none where they are not served or not ours to read."""
    version = served_version(api)
    return optional_list(api, rules_path(version)) if version else []
