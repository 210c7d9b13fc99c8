# SPDX-License-Identifier: Apache-2.0
"""A pod with MPS daemons has a week to end: the agent in it ends in time all the same."""

import subprocess
import sys

HUNG = """
import signal, threading
from aliquot_agent.__main__ import end_in_time
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
end_in_time(0.2)
print("waiting", flush=True)
threading.Event().wait()
"""


def test_an_agent_that_hangs_when_it_is_asked_to_end_is_ended() -> None:
    command = [sys.executable, "-c", HUNG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        process.terminate()
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "heard\n"), errors
