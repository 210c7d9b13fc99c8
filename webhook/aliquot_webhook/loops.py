# SPDX-License-Identifier: Apache-2.0
"""A named thread that does one thing again and again, and stops when told."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from aliquot_webhook.kube import ApiError

logger = logging.getLogger(__name__)


class Part(Protocol):
    """Something with threads of its own."""

    def ask_to_stop(self) -> None:
        """Make it end; returns at once."""

    def join(self, timeout_s: float) -> None:
        """Wait for the end, at most so long."""


def stop_all(*parts: Part, timeout_s: float = 5.0) -> None:
    """End all of them. They have `timeout_s` together: whom an absent server keeps, dies with the process."""
    for part in parts:
        part.ask_to_stop()
    deadline_s = time.monotonic() + timeout_s
    for part in parts:
        part.join(max(0.0, deadline_s - time.monotonic()))


class Loop:
    """Calls `step`, which returns the seconds to wait before the next call, until `stop`.

    A step that raises is tried again after `retry_s`. `expected` errors (a server that is away, say) are told
    in a line, others with all that is known.
    """

    def __init__(
        self,
        *,
        name: str,
        step: Callable[[], float],
        retry_s: float = 5.0,
        expected: tuple[type[Exception], ...] = (ApiError,),
    ) -> None:
        self._step = step
        self._retry_s = retry_s
        self._expected = expected
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first step runs at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """End after the current step."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                delay_s = self._step()
            except self._expected as error:
                logger.warning("step failed", extra={"loop": self._thread.name, "error": str(error)})
                delay_s = self._retry_s
            except Exception:
                logger.exception("step failed", extra={"loop": self._thread.name})
                delay_s = self._retry_s
            self._stopping.wait(delay_s)
