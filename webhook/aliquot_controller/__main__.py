# SPDX-License-Identifier: Apache-2.0
"""The command `aliquot-controller`."""

import os
import signal
import sys
import threading

from aliquot_controller.runtime import Runtime
from aliquot_controller.settings import ControllerSettings
from aliquot_webhook import logs
from aliquot_webhook.settings import read


def main() -> None:
    """Run until SIGTERM."""
    settings = read(ControllerSettings, prog="aliquot-controller", argv=sys.argv[1:], environ=os.environ)
    logs.configure(settings.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    runtime = Runtime(settings=settings)
    runtime.start()
    stopping.wait()
    runtime.stop()


if __name__ == "__main__":
    main()
