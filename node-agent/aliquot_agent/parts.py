# SPDX-License-Identifier: Apache-2.0
"""Parts of the agent: begun one by one, ended all at once."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)


class Part(Protocol):
    """What is started and stopped."""

    def start(self) -> None:
        """Begins."""

    def stop(self) -> None:
        """Ends."""


def stop_together(stops: Sequence[Callable[[], None]]) -> str | None:
    """Calls all of them at once, since each may wait for a server's answer; what went wrong first."""
    problems: list[str] = []

    def end(stop: Callable[[], None]) -> None:
        try:
            stop()
        except Exception as error:  # the others must still stop
            logger.exception("a part does not stop")
            problems.append(f"a part does not stop: {error!r}")

    threads = [threading.Thread(target=end, args=(stop,), name="stop") for stop in stops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems[0] if problems else None
