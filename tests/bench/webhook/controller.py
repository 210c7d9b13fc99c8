# SPDX-License-Identifier: Apache-2.0
"""What the controller costs in memory with CLAIMS claims of running pods in namespaces with budgets. Writes
build/bench/webhook-controller.json.

The API server is a process that serves lists in pages: `python -m tests.bench.webhook.controller serve`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.bench.agent.server import Handler, Server, claim, kubeconfig
from tests.bench.figures import Figure, at_most, publish

CLAIMS: Final = 10_000
NAMESPACES: Final = 10
LOOKS: Final = 3
"""How often all claims are listed before anything is measured: by the watch, then for stale ones."""
SETTINGS: Final = {
    "budget-interval-s": 3,
    "stale-interval-s": 3,
    "keep-ca-bundle": "false",
    "host": "127.0.0.1",
    "port": 0,
}


def metadata(kind: str, number: int) -> dict[str, Any]:
    """As a server gives it back, with the book of who wrote which field."""
    fields: dict[str, Any] = {"f:metadata": {f"f:field-{each}": {} for each in range(24)}}
    written = {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}
    return {
        "name": f"{kind}-{number}",
        "namespace": f"team-{number % NAMESPACES}",
        "uid": f"{kind}-uid-{number}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"resource.kubernetes.io/pod-claim-name": "aliquot"},
        "managedFields": [written, written, written],
    }


def claims() -> Iterator[dict[str, Any]]:
    """Allocated, reserved, and reported on by a node's agent."""
    for number in range(CLAIMS):
        made = claim(f"gpu-{number % 8}.c-{number}")
        pod = {"resource": "pods", "name": f"pod-{number}", "uid": f"pod-uid-{number}"}
        owner = {"kind": "Pod", "controller": True, "name": pod["name"], "uid": pod["uid"]}
        made["metadata"] = {
            **metadata("claim", number),
            "ownerReferences": [owner],
            "finalizers": ["resource.kubernetes.io/delete-protection"],
        }
        made["status"]["reservedFor"] = [pod]
        data = {f"figure-{each}": 100 for each in range(8)}
        conditions = [
            {"type": each, "status": "True", "reason": "Measured", "message": "as it should be"}
            for each in ("Ready", "WithinQuota", "ShimMissing", "BooksDiffer")
        ]
        result = made["status"]["allocation"]["devices"]["results"][0]
        where = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
        made["status"]["devices"] = [{**where, "data": data, "conditions": conditions}]
        yield made


def pods() -> Iterator[dict[str, Any]]:
    """They all run."""
    for number in range(CLAIMS):
        container = {
            "name": "main",
            "env": [{"name": f"A{each}", "value": "b"} for each in range(8)],
            "resources": {"claims": [{"name": "aliquot", "request": "main"}]},
        }
        yield {
            "metadata": metadata("pod", number),
            "spec": {
                "containers": [container],
                "resourceClaims": [{"name": "aliquot", "resourceClaimName": f"claim-{number}"}],
            },
            "status": {"phase": "Running"},
        }


def budgets() -> Iterator[dict[str, Any]]:
    """One in each namespace."""
    for number in range(NAMESPACES):
        yield {"metadata": metadata("budget", number), "spec": {"memory": "100Ti"}, "status": {}}


class Lists(Handler):
    """Lists in pages, and single objects as they were last written."""

    lists: dict[str, list[tuple[str, bytes]]]
    written: dict[str, dict[str, Any]]

    def do_GET(self) -> None:
        """A page, an object, or a watch on which nothing happens."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        plural = url.path.rpartition("/")[2]
        if "watch" in query or url.path == "/version":
            super().do_GET()
        elif plural.endswith("s"):
            within = re.search(r"/namespaces/([^/]+)/", url.path)
            self._page(plural, within[1] if within else "", query)
        elif url.path in self.written:
            self._answer(self.written[url.path])
        else:
            self._answer({"message": "not found"}, status=404)

    def _page(self, plural: str, namespace: str, query: dict[str, str]) -> None:
        found = [line for where, line in self.lists.get(plural, ()) if namespace in ("", where)]
        start, limit = int(query.get("continue", "0")), int(query.get("limit", len(found) or 1))
        follows = "" if start + limit >= len(found) else str(start + limit)
        head = json.dumps({"resourceVersion": "1", "continue": follows}).encode()
        data = b'{"metadata":%b,"items":[%b]}' % (head, b",".join(found[start : start + limit]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        if plural == "resourceclaims" and not namespace and not follows:
            sys.stdout.write("listed\n")
            sys.stdout.flush()

    def do_POST(self) -> None:
        """Keep it."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        name = body.get("metadata", {}).get("name", "")
        body.setdefault("metadata", {})["resourceVersion"] = "2"
        self.written[path if self.command != "POST" else f"{path}/{name}"] = body
        self._answer(body)

    do_PUT = do_POST
    do_PATCH = do_POST


def serve() -> None:
    """Until killed."""
    made = {"resourceclaims": claims(), "pods": pods(), "aliquotbudgets": budgets()}
    Lists.lists = {
        plural: [(each["metadata"]["namespace"], json.dumps(each).encode()) for each in objects]
        for plural, objects in made.items()
    }
    Lists.written = {}
    server = Server(("127.0.0.1", 0), Lists)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


def measure() -> list[Figure]:
    """The controller's memory, while it works and at most."""
    command = [sys.executable, "-m"]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [*command, __spec__.name, "serve"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it tells of every client that hangs up
            text=True,
        )
        try:
            assert server.stdout is not None
            credentials = Path(folder) / "kubeconfig"
            credentials.write_text(json.dumps(kubeconfig(int(server.stdout.readline()))))
            options = [f"--{key}={value}" for key, value in {"kubeconfig": credentials, **SETTINGS}.items()]
            controller = subprocess.Popen([*command, "aliquot_controller", *options])
            try:
                for _ in range(LOOKS):
                    assert server.stdout.readline() == "listed\n"
                status = Path(f"/proc/{controller.pid}/status").read_text()
            finally:
                controller.terminate()
                controller.wait(30)
        finally:
            server.kill()
            server.wait()
    now, most = (int(re.findall(rf"{key}:\s+(\d+) kB", status)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    what = f"memory of the controller, {CLAIMS} claims in {NAMESPACES} namespaces with budgets"
    return [at_most(what, now, "MiB", target=128), at_most("at most", most, "MiB", target=192)]


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        publish("webhook-controller", measure())
