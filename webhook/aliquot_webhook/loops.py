# SPDX-License-Identifier: Apache-2.0
"""A named thread that does one thing again and again, and stops when told."""

import logging
import threading
from collections.abc import Callable

from aliquot_webhook.kube import ApiError

logger = logging.getLogger(__name__)


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

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the current step, or after `timeout_s` without waiting for it any longer."""
        self._stopping.set()
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
