# SPDX-License-Identifier: Apache-2.0
"""Entry point of `aliquot-agent`."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.end())
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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.end())
    keeper.run()
    return 0


def _end_hard() -> NoReturn:
    """Ends with status 1 though threads still run: they would keep the process, and its /healthz good."""
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
