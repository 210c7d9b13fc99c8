# SPDX-License-Identifier: Apache-2.0
"""The agent as a process that cannot start, and one whose parts do not stop."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {}}],
    "current-context": "c",
}
STOP = """
import sys
from pathlib import Path
from aliquot_agent import kube, settings
from aliquot_agent.runtime import Agent

class Broken:
    def start(self): pass
    def stop(self): 1 / 0

chosen = settings.load(sys.argv[1:], {})
agent = Agent(settings=chosen, kube=kube.connect(chosen.kubeconfig))
agent._always = (*agent._always[:-1], Broken())  # behind the servers, before the leader
agent.start()
agent.stop()
print(agent.failed)
"""

FOLLOW = """
import sys, threading
from aliquot_agent import kube, settings
from aliquot_agent.locks import Leadership
from aliquot_agent.runtime import Agent

chosen = settings.load(sys.argv[1:], {})
Leadership(directory=chosen.plugin_dir).take(wait=False)
agent = Agent(settings=chosen, kube=kube.connect(chosen.kubeconfig))
agent.start()
names = {thread.name for thread in threading.enumerate()}
agent.stop()
print("discovery" in names, "publisher" in names, agent.failed)
"""
SLOW = """
import sys, threading, time
from aliquot_agent import kube, settings
from aliquot_agent.runtime import Agent

class Slow:
    def start(self): pass
    def stop(self): threading.Event().wait(3)

chosen = settings.load(sys.argv[1:], {})
agent = Agent(settings=chosen, kube=kube.connect(chosen.kubeconfig))
agent._always = (*agent._always, *(Slow() for _ in range(10)))
agent.start()
before = time.monotonic()
agent.stop()
print(time.monotonic() - before)
"""
LATE = """
import sys, threading
from aliquot_agent import kube, settings
from aliquot_agent.runtime import Agent

chosen = settings.load(sys.argv[1:], {})
agent = Agent(settings=chosen, kube=kube.connect(chosen.kubeconfig))
asked, stop, begun = threading.Event(), agent._leader.stop, threading.Event()

class First:
    def start(self): asked.wait()
    def stop(self): pass

class Last:
    def start(self): begun.set()
    def stop(self): print("stopped")

def late():
    asked.set()
    begun.wait()
    stop()

agent._led = (First(), *agent._led, Last())
agent._leader.stop = late
agent.start()
agent.stop()
"""


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """An agent of its own directories, whose API server is away."""
    (tmp_path / "kubeconfig").write_text(json.dumps(KUBECONFIG))
    flags = ["--node-name", "n", "--kubeconfig", str(tmp_path / "kubeconfig"), "--metrics-port", "0"]
    for name in ("plugin-dir", "registry-dir", "cdi-dir", "base-cdi-dirs", "state-dir", "run-dir"):
        flags += [f"--{name}", str(tmp_path / name)]
    return flags


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)


def test_an_agent_that_cannot_start_ends_with_status_1(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "registry-dir").write_text("not a directory")  # met after most threads have begun
    ended = run("-m", "aliquot_agent", *flags)
    assert ended.returncode == 1
    assert "the agent cannot start" in ended.stdout + ended.stderr


def test_a_part_that_does_not_stop_keeps_no_other_from_it(flags: list[str]) -> None:
    ended = run("-c", STOP, *flags)  # hangs if the metrics server goes on
    assert ended.returncode == 0, ended.stderr
    assert "a part does not stop: ZeroDivisionError" in ended.stdout


def test_parts_stop_together(flags: list[str]) -> None:
    ended = run("-c", SLOW, *flags)
    assert ended.returncode == 0, ended.stderr
    assert 3 <= float(ended.stdout.split()[-1]) < 25  # one after another it would be 30


def test_parts_that_begin_while_the_agent_ends_are_stopped(flags: list[str]) -> None:
    ended = run("-c", LATE, *flags)  # hangs if one of them goes on
    assert ended.returncode == 0, ended.stderr
    assert "stopped" in ended.stdout


def test_an_agent_that_does_not_lead_looks_for_owners_and_publishes_nothing(flags: list[str]) -> None:
    ended = run("-c", FOLLOW, *flags)
    assert ended.stdout.split()[-3:] == ["True", "False", "None"], ended.stderr
