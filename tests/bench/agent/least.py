# SPDX-License-Identifier: Apache-2.0
"""The baseline: a plugin that does the least one can. It reads the claim and writes a CDI file.

It has the agent's gRPC server, with threads for a burst, and its translation of messages. It reads claims as
an author would who looks for speed: by the package `kubernetes`, as JSON and not as models, with a connection
for each call of a burst. That the agent leaves out layers of that package is its own.
`python -m tests.bench.agent.least KUBECONFIG DIR`.
"""

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from kubernetes import client, config

from aliquot_agent import files, registration
from aliquot_agent.claims import ClaimRef, PreparedDevice
from aliquot_agent.healthservice import HealthService
from aliquot_agent.plugin import DraPlugin

CALLS = 64


class LeastPlugin:
    """Claims as files."""

    def __init__(self, *, api: client.ResourceV1Api, directory: Path) -> None:
        self._api = api
        self._directory = directory

    def prepare(self, ref: ClaimRef, *, waited_s: float) -> tuple[PreparedDevice, ...]:
        """Reads the claim, writes its file."""
        answer: Any = self._api.read_namespaced_resource_claim(
            ref.name, ref.namespace, _preload_content=False
        )
        claim = json.loads(answer.data)
        found = claim["status"]["allocation"]["devices"]["results"][0]
        request, pool, device, share = (found[key] for key in ("request", "pool", "device", "shareID"))
        devices = [{"name": share, "containerEdits": {"env": [f"SHARE={share}"]}}]
        spec = {"cdiVersion": "0.5.0", "kind": "x/y", "devices": devices}
        files.write_atomic(self._directory / f"{ref.uid}.json", json.dumps(spec).encode())
        return (PreparedDevice(request, pool, device, share, (f"x/y={share}",)),)

    def unprepare(self, uid: str) -> None:
        """Removes the file."""
        (self._directory / f"{uid}.json").unlink(missing_ok=True)


def connect(kubeconfig: str) -> client.ResourceV1Api:
    """The package's client."""
    configuration = client.Configuration()
    config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = CALLS
    return client.ResourceV1Api(client.ApiClient(configuration))


def main(kubeconfig: str, folder: str) -> int:
    root = Path(folder)
    servers = registration.Servers(
        paths=registration.Sockets(dra=root / "dra.sock", registrar=root / "reg.sock"),
        plugin=DraPlugin(
            claims=LeastPlugin(api=connect(kubeconfig), directory=root),
            prepared=lambda _: None,
            unprepared=lambda _: None,
            failed=lambda _: None,
        ),
        health=HealthService(devices=list),
        registered=lambda *_: None,
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    servers.start()
    ended.wait()
    servers.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
