# SPDX-License-Identifier: Apache-2.0
"""Threads that do one thing again and again, and their end."""

import threading
import time

from aliquot_webhook.loops import Loop, stop_all


def test_all_are_asked_before_anybody_is_waited_for() -> None:
    """The first one's step ends only when the last one has heard it."""
    begun, heard = threading.Event(), threading.Event()

    class Last:
        def ask_to_stop(self) -> None:
            heard.set()

        def join(self, timeout_s: float) -> None:
            """Has no thread."""

    def step() -> float:
        begun.set()
        heard.wait(30)
        return 0.0

    first = Loop(name="first-of-two", step=step)
    first.start()
    assert begun.wait(30)
    stop_all(first, Last(), timeout_s=30)
    assert "first-of-two" not in {thread.name for thread in threading.enumerate()}


def test_those_that_do_not_end_have_one_deadline_together() -> None:
    release = threading.Event()

    def step() -> float:
        release.wait(60)
        return 0.0

    stuck = [Loop(name=f"stuck-{number}", step=step) for number in range(100)]
    for loop in stuck:
        loop.start()
    began_s = time.monotonic()
    stop_all(*stuck, timeout_s=0.5)
    assert time.monotonic() - began_s < 25  # one after the other: 50
    release.set()
    stop_all(*stuck, timeout_s=30)
    assert not any(thread.name.startswith("stuck-") for thread in threading.enumerate())


def test_one_that_was_never_started_needs_no_end() -> None:
    stop_all(Loop(name="never", step=lambda: 0.0))
