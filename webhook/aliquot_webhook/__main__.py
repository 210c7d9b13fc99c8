# SPDX-License-Identifier: Apache-2.0
"""The command `aliquot-webhook`."""

import os
import sys

from aliquot_webhook import logs
from aliquot_webhook.runtime import Runtime
from aliquot_webhook.serve import Server
from aliquot_webhook.settings import Settings, read


def main() -> None:
    """Serve until SIGTERM."""
    settings = read(Settings, prog="aliquot-webhook", argv=sys.argv[1:], environ=os.environ)
    logs.configure(settings.log_level)
    Server(settings=settings, build=lambda serving: Runtime(settings=settings, serving=serving)).run()


if __name__ == "__main__":
    main()
