# SPDX-License-Identifier: Apache-2.0
"""The API server's audit log, read back: which requests were made, by whom."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Request = dict[str, Any]
"""An audit event (audit.k8s.io/v1, level Metadata): verb, requestURI, user, objectRef, responseStatus, ..."""


class AuditLog:
    """Every request the API server has finished, in the order it finished them."""

    def __init__(self, *, file: Path) -> None:
        self._file = file

    def mark(self) -> int:
        """The present end of the log, to be given to `requests` as `since`."""
        return self._file.stat().st_size

    def requests(
        self,
        *,
        since: int = 0,
        user: str | None = None,
        verb: str | None = None,
        resource: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
    ) -> list[Request]:
        """The requests after a mark that fit; a user fits by its whole name, or by its end after a colon."""
        wanted = {"resource": resource, "namespace": namespace, "name": name}
        return [
            event
            for event in self._events(since)
            if (user is None or f":{event['user']['username']}".endswith(f":{user}"))
            and verb in (None, event["verb"])
            and all(text in (None, event.get("objectRef", {}).get(key, "")) for key, text in wanted.items())
        ]

    def _events(self, since: int) -> Iterator[Request]:
        seen: set[str] = set()
        with self._file.open("rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # being written just now
                event = json.loads(line)
                if event["auditID"] not in seen:  # a watch is told twice: when it starts, and when it ends
                    seen.add(event["auditID"])
                    yield event
