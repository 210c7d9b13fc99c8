# SPDX-License-Identifier: Apache-2.0
"""Settings of a whole GPU that only the driver's own tool makes: nvidia-smi, or one with its command line."""

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from aliquot_agent.errors import ToolFailed
from aliquot_api.config import TimeSlice

_TIMEOUT_S: Final = 30.0
"""Without persistence mode the tool first wakes the GPU."""
_MOST_OUTPUT: Final = 1 << 20
_SLICES: Final = {TimeSlice.DEFAULT: 0, TimeSlice.SHORT: 1, TimeSlice.MEDIUM: 2, TimeSlice.LONG: 3}
"""`nvidia-smi compute-policy --set-timeslice`."""


class DriverTool:
    """The tool at `path`."""

    def __init__(self, *, path: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def set_time_slice(self, gpu_uuid: str, length: TimeSlice) -> None:
        """How long a process has the GPU while others wait. Raises ToolFailed."""
        self._run("compute-policy", "-i", gpu_uuid, "--set-timeslice", str(_SLICES[length]))

    def set_exclusive(self, gpu_uuid: str, *, on: bool) -> None:
        """Whether one process only may have the GPU: what MPS's server wants. Raises ToolFailed."""
        self._run("-i", gpu_uuid, "-c", "EXCLUSIVE_PROCESS" if on else "DEFAULT")

    def _run(self, *arguments: str) -> None:
        run([self._path, *arguments], timeout_s=self._timeout_s)


def run(
    command: Sequence[str], *, timeout_s: float, given: str = "", environment: dict[str, str] | None = None
) -> str:
    """What a program printed. Raises ToolFailed when it is not there, fails, or takes too long."""
    # Into a file: a daemon that the program leaves behind may hold its output for ever.
    with os.fdopen(os.memfd_create("output"), "w+b") as output:
        try:
            done = subprocess.run(
                command,
                input=given.encode(),
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise ToolFailed(f"there is no program {command[0]}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolFailed(f"{' '.join(command)}: {error}") from error
        output.seek(0)
        said = output.read(_MOST_OUTPUT).decode(errors="replace")
    if done.returncode != 0:
        told = " ".join(said.split())[:300]
        raise ToolFailed(f"{' '.join(command)}: exit status {done.returncode}: {told}")
    return said
