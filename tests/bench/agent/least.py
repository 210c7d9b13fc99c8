# SPDX-License-Identifier: Apache-2.0
"""The baseline: a plugin that does the least one can. It reads the claim and writes a CDI file.

Same gRPC server and same API client as the agent's: `python -m tests.bench.agent.least KUBECONFIG DIR`.
"""

import json
import signal
import sys
import threading
from pathlib import Path

from aliquot_agent import files, kube, registration
from aliquot_agent.claims import ClaimRef, PreparedDevice
from aliquot_agent.healthservice import HealthService
from aliquot_agent.plugin import DraPlugin


class LeastPlugin:
    """Claims as files."""

    def __init__(self, *, api: kube.Kube, directory: Path) -> None:
        self._api = api
        self._directory = directory

    def prepare(self, ref: ClaimRef, *, waited_s: float) -> tuple[PreparedDevice, ...]:
        """Reads the claim, writes its file."""
        claim = self._api.get_claim(ref.namespace, ref.name)
        found = claim["status"]["allocation"]["devices"]["results"][0]
        request, pool, device, share = (found[key] for key in ("request", "pool", "device", "shareID"))
        devices = [{"name": share, "containerEdits": {"env": [f"SHARE={share}"]}}]
        spec = {"cdiVersion": "0.5.0", "kind": "x/y", "devices": devices}
        files.write_atomic(self._directory / f"{ref.uid}.json", json.dumps(spec).encode())
        return (PreparedDevice(request, pool, device, share, (f"x/y={share}",)),)

    def unprepare(self, uid: str) -> None:
        """Removes the file."""
        (self._directory / f"{uid}.json").unlink(missing_ok=True)


def main(kubeconfig: str, folder: str) -> int:
    root = Path(folder)
    servers = registration.Servers(
        paths=registration.Sockets(dra=root / "dra.sock", registrar=root / "reg.sock"),
        plugin=DraPlugin(
            claims=LeastPlugin(api=kube.connect(Path(kubeconfig)), directory=root),
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
