# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from aliquot_agent.loops import Loop


def test_a_step_is_done_at_once_and_again_after_a_poke() -> None:
    steps = threading.Semaphore(0)
    loop = Loop(name="test", step=steps.release, period_s=600)
    loop.start()
    assert steps.acquire(timeout=10)
    assert not steps.acquire(timeout=0.05)
    loop.poke()
    assert steps.acquire(timeout=10)
    loop.stop()


def test_a_poke_during_a_step_brings_another_one() -> None:
    begun, go_on, steps = threading.Event(), threading.Event(), []

    def step() -> None:
        steps.append(1)
        begun.set()
        go_on.wait(10)

    loop = Loop(name="test", step=step, period_s=600)
    loop.start()
    begun.wait(10)
    loop.poke()
    begun.clear()
    go_on.set()
    assert begun.wait(10)
    loop.stop()
    assert len(steps) == 2


def test_stopping_ends_a_pause_inside_a_step_and_can_be_done_before_the_start() -> None:
    paused, answers = threading.Event(), []

    def step() -> None:
        paused.set()
        answers.append(loop.pause(600))

    loop = Loop(name="test", step=step, period_s=600)
    loop.start()
    paused.wait(10)
    loop.stop()
    assert answers == [True]
    Loop(name="never started", step=step, period_s=1).stop()


def test_a_step_that_raises_ends_the_thread_for_all_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: died.append(arguments.thread.name))
    loop = Loop(name="broken", step=lambda: 1 / 0, period_s=600)
    loop.start()
    loop.stop()
    assert died == ["broken"]
