# SPDX-License-Identifier: Apache-2.0
"""Entry point of `aliquot-agent`."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

from aliquot_agent import cleanup, kube, logs, settings, status
from aliquot_agent.runtime import Agent
from aliquot_api.errors import InvalidInput

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the agent until SIGTERM or SIGINT, or prints its status; the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["status"]:
        return status.main(arguments[1:])
    if arguments[:1] == ["clean-node"]:
        return cleanup.main(arguments[1:])
    try:
        chosen = settings.load(arguments, os.environ)
    except InvalidInput as error:
        sys.stderr.write(f"aliquot-agent: {error}\n")
        return 2
    logs.start(chosen.log_level)
    logger.info("starting", extra={key: str(value) for key, value in asdict(chosen).items()})
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


def _end_hard() -> NoReturn:
    """Ends with status 1 though threads still run: they would keep the process, and its /healthz good."""
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
