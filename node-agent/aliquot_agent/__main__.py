# SPDX-License-Identifier: Apache-2.0
"""Entry point of `aliquot-agent`."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final, NoReturn

from aliquot_agent import cleanup, kube, logs, settings, status
from aliquot_agent.checkpoint import Checkpoints
from aliquot_agent.keeper import Keeper
from aliquot_agent.kept import Register
from aliquot_agent.mps import Daemon
from aliquot_agent.runtime import Agent
from aliquot_agent.smi import DriverTool
from aliquot_api.errors import InvalidInput

logger = logging.getLogger(__name__)

_KEEP: Final = "keep-sharing"
_STOP_S: Final = 25.0
"""An agent that is asked to end has ended after this, whatever hangs: its pod has no time limit for it."""
_UMASK: Final = 0o022
"""Tenants' programs and the runtime read files of ours, whatever the image's runtime starts us with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the agent or its keeper of sharing until SIGTERM or SIGINT, or prints status; the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["status"]:
        return status.main(arguments[1:])
    if arguments[:1] == ["clean-node"]:
        return cleanup.main(arguments[1:])
    keeps = arguments[:1] == [_KEEP]
    try:
        chosen = settings.load(arguments[1:] if keeps else arguments, os.environ)
    except InvalidInput as error:
        sys.stderr.write(f"aliquot-agent: {error}\n")
        return 2
    logs.start(chosen.log_level)
    os.umask(_UMASK)
    logger.info("starting", extra={key: str(value) for key, value in asdict(chosen).items()})
    if keeps:
        return _keep_sharing(chosen)
    agent = Agent(settings=chosen, kube=kube.connect(chosen.kubeconfig))
    _when_asked(agent.end)
    end_in_time(_STOP_S)
    try:
        agent.start()
    except Exception:  # whatever it is, half an agent must not go on
        logger.critical("the agent cannot start", exc_info=True)
        _end_hard()
    agent.wait()
    logger.info("stopping", extra={"reason": agent.failed or "asked to"})
    agent.stop()
    if agent.failed is not None:
        logger.error("the agent could not go on", extra={"reason": agent.failed})
        _end_hard()
    return 0


def _keep_sharing(chosen: settings.Settings) -> int:
    """The container `sharing`: what it does ends with it, so any fault may end it."""
    keeper = Keeper(
        register=Register(directory=chosen.sharing_dir),
        checkpoints=Checkpoints(directory=chosen.checkpoint_dir),
        tool=DriverTool(path=chosen.smi),
        daemon_of=lambda gpu_uuid: Daemon(
            gpu_uuid=gpu_uuid, directory=chosen.mps_dir / gpu_uuid, control=chosen.mps_control
        ),
    )
    _when_asked(keeper.end)
    keeper.run()
    return 0


def _when_asked(end: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


def end_in_time(seconds: float) -> None:
    """Ends the process so long after a signal that it handles; also while the main thread hangs in a call."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)

    def wait() -> None:
        os.read(heard, 1)
        time.sleep(seconds)
        logger.error("the agent did not end in time")
        _end_hard()

    threading.Thread(target=wait, name="deadline", daemon=True).start()


def _end_hard() -> NoReturn:
    """Ends with status 1 though threads still run: they would keep the process, and its /healthz good."""
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
