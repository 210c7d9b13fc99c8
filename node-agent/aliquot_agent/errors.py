# SPDX-License-Identifier: Apache-2.0
"""The agent's own exceptions."""


class Refused(Exception):
    """A claim that cannot be prepared as it stands; the text is for the node's operator."""


class NotOurs(Refused):
    """The claim of this name holds nothing here: another UID, not allocated, or elsewhere."""


class ApiError(Exception):
    """The API server answered with an error, or not at all (`status` 0)."""

    def __init__(self, *, status: int, message: str) -> None:
        super().__init__(f"API server: {status or 'no answer'}: {message}")
        self.status = status

    @property
    def transient(self) -> bool:
        """Worth another try soon."""
        return self.status in (0, 408, 429) or self.status >= 500


class NvmlError(Exception):
    """NVML refused or is missing."""


class ToolFailed(Exception):
    """A program of the driver's is missing, failed, or did not end."""
