# SPDX-License-Identifier: Apache-2.0
"""Log lines as JSON objects on stderr: a constant message, and data as keys."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One record, one line; what was given as `extra` becomes keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send every logger's lines, from `level` up, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It warns of every kept-alive connection that the server closed; we retry those.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
