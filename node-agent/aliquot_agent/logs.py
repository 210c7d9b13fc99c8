# SPDX-License-Identifier: Apache-2.0
"""Log lines: a constant message, then its data as key=value."""

import json
import logging
import sys
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """`2026-01-02T03:04:05 INFO claims: prepared claim claim=ns/name shares=1`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with what `extra` holds behind the message."""
        time = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = f"{time} {record.levelname} {record.name.rpartition('.')[2]}: {record.getMessage()}"
        for key, value in vars(record).items():
            if key not in _STANDARD:
                text = str(value)
                line += f" {key}={json.dumps(text) if ' ' in text or '=' in text else text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def start(level: str) -> None:
    """Sends all log lines of at least `level` to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("urllib3").setLevel(logging.ERROR)
