# SPDX-License-Identifier: Apache-2.0
"""The template protocol on the real API server: the model of tests/unit/controller, with its calls made
there."""

import os
from collections.abc import Mapping
from typing import Any

from aliquot_api.wire import JsonObject, dig
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.kube import ApiError, Keep, Kube, whole
from aliquot_webhook.templates import SELECTOR, collection
from tests.cluster import Cluster
from tests.unit.controller.template_model import Model
from tests.unit.webhook.test_templates import START, a_template
from tests.webhook_cluster.installation import Installation, container, pod

INTERLEAVINGS = int(os.environ.get("ALIQUOT_TEMPLATE_INTERLEAVINGS", "1000"))


class RealWorld:
    """One template on a real server; the collectors see that one and no other."""

    def __init__(self, kube: Kube, namespace: str, template: ClaimTemplate) -> None:
        self._kube = kube
        self.namespace = namespace
        self.template = template
        self.now = START

    @property
    def api(self) -> "RealWorld":
        return self

    def call(self, *args: Any, **kwargs: Any) -> JsonObject:
        return self._kube.call(*args, **kwargs)

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        found, version = self._kube.list_all(path, query, keep)
        if path.endswith("/resourceclaimtemplates"):
            found = [each for each in found if dig(each, "metadata", "name") == self.template.name]
        return found, version

    def exists(self) -> bool:
        try:
            self._kube.call("GET", f"{collection(self.namespace)}/{self.template.name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def templates(self) -> list[JsonObject]:
        return self.list_all(collection(self.namespace), {"labelSelector": SELECTOR})[0]

    def persist(self, name: str) -> None:
        claims = [{"name": "aliquot", "resourceClaimTemplateName": self.template.name}]
        given = pod(name, self.namespace, container(), resourceClaims=claims, schedulerName="nobody")
        self._kube.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", body=given)

    def remove(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self._kube.call("DELETE", path, body={"gracePeriodSeconds": 0})


def test_a_thousand_interleavings_strand_no_pod_and_leave_no_template(
    cluster: Cluster, installation: Installation, plain_namespace: str
) -> None:
    """As administrator, so that no webhook of ours is asked; the clock is the model's, and our controller is
    stopped, whose clock is not."""
    installation.stop("controller")
    try:
        kube = Kube.connect(kubeconfig=str(cluster.kubeconfig), timeout_s=10)
        done = seed = 0
        while done < INTERLEAVINGS:
            template = a_template(1000 + seed)
            model = Model(RealWorld(kube, plain_namespace, template), seed)
            model.run(20)
            done += model.interleavings
            seed += 1
    finally:
        installation.start("controller")
        installation.wait_ready()
    assert cluster.list("resourceclaimtemplates", plain_namespace) == []
