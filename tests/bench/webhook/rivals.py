# SPDX-License-Identifier: Apache-2.0
"""Webhooks to compare with, on the same server and TLS as ours: `python -m tests.bench.webhook.rivals ADDRESS
PORT FOLDER KUBECONFIG`. At /nothing one that says yes; at /call one that makes one object for each pod."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from wsgiref.types import WSGIApplication

from flask import Flask, Response, request

from aliquot_webhook import certs
from aliquot_webhook.kube import Kube
from aliquot_webhook.serve import Server
from aliquot_webhook.settings import Settings
from aliquot_webhook.templates import ROOT
from aliquot_webhook.tls import ServingContext


class Service:
    """Both rivals in one process."""

    def __init__(self, *, serving: ServingContext, host: str, folder: Path, kubeconfig: str) -> None:
        self._kube = Kube.connect(kubeconfig=kubeconfig, timeout_s=10)
        bundle = certs.renewed(None, hosts=[host], now=datetime.now(UTC))
        assert bundle is not None
        serving.use(bundle)
        (folder / "ca.tmp").write_bytes(bundle.authority)
        (folder / "ca.tmp").rename(folder / "ca.crt")
        self.app: WSGIApplication = self._app()

    def start(self) -> None:
        """No threads."""

    def stop(self) -> None:
        """No threads."""

    def _app(self) -> WSGIApplication:
        app = Flask(__name__)

        @app.post("/nothing")
        def nothing() -> Response:
            return _yes(json.loads(request.get_data()))

        @app.post("/call")
        def call() -> Response:
            review = json.loads(request.get_data())
            uid, namespace = review["request"]["uid"], review["request"]["namespace"]
            exactly = {"deviceClassName": "nic.example"}
            claim = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"bench-{uid}"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
            }
            self._kube.call("POST", f"{ROOT}/namespaces/{namespace}/resourceclaims", body=claim)
            return _yes(review)

        return app


def _yes(review: dict[str, dict[str, str]]) -> Response:
    answer = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": True},
    }
    return Response(json.dumps(answer), mimetype="application/json")


def main() -> None:
    """Serve until SIGTERM."""
    host, port, folder, kubeconfig = sys.argv[1:5]
    settings = Settings(host=host, port=int(port))
    Server(
        settings=settings,
        build=lambda serving: Service(serving=serving, host=host, folder=Path(folder), kubeconfig=kubeconfig),
    ).run()


if __name__ == "__main__":
    main()
