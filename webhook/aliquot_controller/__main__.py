# SPDX-License-Identifier: Apache-2.0
"""The command `aliquot-controller`."""

import os
import signal
import sys
import threading

from aliquot_controller import lifecycle
from aliquot_controller.runtime import Runtime
from aliquot_controller.settings import ControllerSettings
from aliquot_webhook import logs
from aliquot_webhook.kube import Kube
from aliquot_webhook.settings import read


def main() -> int:
    """Run until SIGTERM, or run one command of `lifecycle`; the exit status."""
    command, argv = None, sys.argv[1:]
    if argv and argv[0] in lifecycle.COMMANDS:
        command, *argv = argv
    settings = read(ControllerSettings, prog="aliquot-controller", argv=argv, environ=os.environ)
    logs.configure(settings.log_level)
    if command is not None:
        kube = Kube.connect(kubeconfig=settings.kubeconfig or None, timeout_s=settings.api_timeout_s)
        return lifecycle.run(command, api=kube, settings=settings)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    runtime = Runtime(settings=settings)
    runtime.start()
    stopping.wait()
    runtime.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
