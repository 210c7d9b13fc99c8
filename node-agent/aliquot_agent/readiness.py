# SPDX-License-Identifier: Apache-2.0
"""Whether the agent does its whole work, and if not, why: one reason per part."""

import threading


class Readiness:
    """Reasons against being ready, by part. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}

    def refuse(self, part: str, reason: str) -> None:
        """`part` does not work because of `reason`."""
        with self._lock:
            self._reasons[part] = reason

    def allow(self, part: str) -> None:
        """`part` works."""
        with self._lock:
            self._reasons.pop(part, None)

    def reasons(self) -> dict[str, str]:
        """What is wrong; empty when all is well."""
        with self._lock:
            return dict(self._reasons)
