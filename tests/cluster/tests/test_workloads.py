# SPDX-License-Identifier: Apache-2.0
"""Pods, Services and webhooks work as on any cluster."""

import base64
import json
import urllib.request
from pathlib import Path

import pytest

from tests.cluster import ApiError, Cluster, TestbedError
from tests.cluster.pki import Identity, create
from tests.cluster.tests.pods import busybox, host_python, service

SERVE = "mkdir /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www"
ASK = r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 $WEB_SERVICE_HOST $WEB_SERVICE_PORT"


def test_a_pod_runs_logs_and_takes_commands(cluster: Cluster, namespace: str) -> None:
    [pod] = cluster.apply(busybox("talker", "echo started; exec sleep 1000"), namespace=namespace)
    cluster.wait_for_pod("talker", namespace)

    assert cluster.logs("talker", namespace) == "started\n"
    assert cluster.exec("talker", ["cat"], namespace, stdin="said") == "said"
    assert "Started" in [event["reason"] for event in cluster.events_of(pod)]
    with pytest.raises(TestbedError, match="exit code 3"):
        cluster.exec("talker", ["sh", "-c", "exit 3"], namespace)


def test_a_service_reaches_its_pod_from_every_node_and_from_the_api_server(
    cluster: Cluster, namespace: str
) -> None:
    cluster.apply([busybox("web", SERVE), service("web", 80, 8080)], namespace=namespace)
    address = cluster.wait_for_pod("web", namespace)["status"]["podIP"]

    with urllib.request.urlopen(f"http://{address}:8080/", timeout=10) as answer:
        assert answer.read() == b"web\n", "from this machine"
    for node in cluster.nodes:
        script = f"until {ASK} | grep -q ^web; do sleep 0.1; done"
        cluster.apply(
            busybox(f"from-{node}", script, nodeName=node, restartPolicy="Never"), namespace=namespace
        )
    for node in cluster.nodes:
        cluster.wait_for_pod(f"from-{node}", namespace, phase="Succeeded")
    assert cluster.api.raw(f"/api/v1/namespaces/{namespace}/services/web:main/proxy/") == b"web\n"


def test_a_pod_reaches_the_api_as_itself(cluster: Cluster, namespace: str) -> None:
    script = """
import os, ssl, urllib.request
tls = ssl.create_default_context(cafile="/run/secrets/ca.crt")
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/apis/authentication.k8s.io/v1/selfsubjectreviews"
body = b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}'
token = open("/run/secrets/token").read()
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
print(urllib.request.urlopen(urllib.request.Request(url, body, headers), context=tls).read().decode())
"""
    cluster.apply(host_python("self", script, restartPolicy="Never"), namespace=namespace)
    pod = cluster.wait_for_pod("self", namespace, phase="Succeeded")

    user = json.loads(cluster.logs("self", namespace))["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{namespace}:default"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [pod["spec"]["nodeName"]]


def test_a_webhook_behind_a_service_is_asked(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    name = f"webhook.{namespace}.svc"
    create(tmp_path, [Identity(file="webhook", user=name, names=[name])])
    script = f"""
import http.server, json, ssl
class Refuse(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = {{"message": "asked and refused"}}
        answer = {{"uid": review["request"]["uid"], "allowed": False, "status": status}}
        body = json.dumps({{**review, "response": answer}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain("{tmp_path}/webhook.crt", "{tmp_path}/webhook.key")
server = http.server.HTTPServer(("", 8443), Refuse)
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
    pod = host_python("webhook", script)
    pod["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 8443}, "periodSeconds": 1}
    cluster.apply([pod, service("webhook", 443, 8443)], namespace=namespace)
    cluster.wait_for_pod("webhook", namespace)
    authority = base64.b64encode((tmp_path / "ca.crt").read_bytes()).decode()
    hook = {
        "name": "refuse.testbed.example",
        "clientConfig": {"service": {"namespace": namespace, "name": "webhook"}, "caBundle": authority},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    cluster.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": namespace},
            "webhooks": [hook],
        }
    )
    try:
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "some"}}

        def is_refused() -> bool:
            try:
                cluster.api.create(config_map, namespace=namespace, dry_run=True)
            except ApiError as error:
                return "asked and refused" in error.message
            return False

        cluster.wait_for(is_refused, what="the webhook to be asked", timeout_s=20)
    finally:
        cluster.delete("validatingwebhookconfigurations", namespace)


def test_an_impossible_image_is_explained(cluster: Cluster, namespace: str) -> None:
    pod = busybox("stuck", "exit")
    pod["spec"]["containers"][0]["image"] = "localhost/nowhere:1"
    cluster.apply(pod, namespace=namespace)

    with pytest.raises(TestbedError, match="ErrImageNeverPull"):
        cluster.wait_for_pod("stuck", namespace, timeout_s=3)


def test_api_calls_are_counted_by_user(cluster: Cluster, namespace: str) -> None:
    mark = cluster.audit.mark()
    for _ in range(3):
        cluster.list("configmaps", namespace)

    counted = cluster.audit.requests(since=mark, user="testbed-admin", verb="list", namespace=namespace)
    assert [request["objectRef"]["resource"] for request in counted] == ["configmaps"] * 3
    assert cluster.audit.requests(since=mark, user="nobody") == []
