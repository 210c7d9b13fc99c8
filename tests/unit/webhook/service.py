# SPDX-License-Identifier: Apache-2.0
"""The webhook's server without a cluster: `python -m tests.unit.webhook.service PORT` for the tests and
the benchmark of what lies between socket and `rewrite`."""

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from wsgiref.types import WSGIApplication

from aliquot_webhook import certs
from aliquot_webhook.app import create_app
from aliquot_webhook.certs import Bundle
from aliquot_webhook.loops import Loop, stop_all
from aliquot_webhook.metrics import Metrics
from aliquot_webhook.policy import Policy
from aliquot_webhook.probe import ServerState
from aliquot_webhook.review import Reviewer
from aliquot_webhook.serve import Server
from aliquot_webhook.settings import Settings
from aliquot_webhook.templates import Templates
from aliquot_webhook.tls import ServingContext
from aliquot_webhook.validate import Validator
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.kit import H100, inventory
from tests.unit.webhook.offices import CLASSES, office

HOST = "127.0.0.1"


class Service:
    """A server's parts with a fake API; the certificate is renewed whenever file `renew` is there."""

    def __init__(self, *, serving: ServingContext, folder: Path) -> None:
        self._serving = serving
        self._folder = folder
        self._bundle: Bundle | None = None
        api = FakeApi()
        templates = Templates(api=api, grace_s=3600, most_per_namespace=512)
        budget = office(api)
        known = inventory([H100] * 8)
        self.app: WSGIApplication = create_app(
            mutator=Reviewer(
                policy=Policy(),
                inventory=lambda: known,
                server=lambda: ServerState(problem=None),
                ensure_template=templates.ensure,
                budget=budget,
            ),
            validator=Validator(
                api=api,
                policy=Policy(),
                inventory=lambda: known,
                server=lambda: ServerState(problem=None),
                budget=budget,
                classes=CLASSES,
            ),
            metrics=Metrics(),
            not_ready=lambda: [] if serving.loaded else ["no certificate"],
        )
        self._loop = Loop(name="certificate", step=self._step)

    def start(self) -> None:
        """Load a certificate."""
        self._loop.start()

    def stop(self) -> None:
        """Say so in a file."""
        stop_all(self._loop)
        (self._folder / "stopped").touch()

    def _step(self) -> float:
        renew = self._folder / "renew"
        if self._bundle is None or renew.exists():
            self._bundle = certs.renewed(None, hosts=[HOST], now=datetime.now(UTC))
            assert self._bundle is not None
            self._serving.use(self._bundle)
            temporary = self._folder / "ca.tmp"
            temporary.write_bytes(self._bundle.authority)
            temporary.rename(self._folder / "ca.crt")
            renew.unlink(missing_ok=True)
        return 0.02


def main() -> None:
    """Serve on the port given, with files in the folder given."""
    logging.basicConfig(level="WARNING")
    folder = Path(sys.argv[2])
    settings = Settings(host=HOST, port=int(sys.argv[1]), threads=4)
    Server(settings=settings, build=lambda serving: Service(serving=serving, folder=folder)).run()


if __name__ == "__main__":
    main()
