# SPDX-License-Identifier: Apache-2.0
"""A named thread that does one thing again and again, until it is told to stop.

A step handles its own expected errors. One that raises ends the thread: `runtime` then ends the agent,
since an agent that does half its work is worse than one that starts anew.
"""

import threading
from collections.abc import Callable


class Loop:
    """Calls `step` every `period_s`, or at once after `poke`. `start`, then `stop`."""

    def __init__(
        self, *, name: str, step: Callable[[], object], period_s: float, first_wait_s: float = 0.0
    ) -> None:
        self._step = step
        self._period_s = period_s
        self._first_wait_s = first_wait_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: for steps that take long."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begins; the first step comes after `first_wait_s`."""
        self._thread.start()

    def poke(self) -> None:
        """Does the next step now."""
        self._wake.set()

    def pause(self, seconds: float) -> bool:
        """Waits, inside a step; True at once when the loop is to stop."""
        return self._stopping.wait(seconds)

    def stop(self) -> None:
        """Ends after the current step."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        self._wake.wait(self._first_wait_s)
        while not self._stopping.is_set():
            self._wake.clear()
            self._step()
            self._wake.wait(self._period_s)
