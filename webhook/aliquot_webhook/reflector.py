# SPDX-License-Identifier: Apache-2.0
"""A local copy of a list of API objects, kept by list and watch."""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from aliquot_api.wire import JsonObject, dig, obj, text
from aliquot_webhook.kube import ApiError, Keep, Watch, whole
from aliquot_webhook.loops import Loop

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class Sink(Protocol):
    """Where the objects go. Called from the reflector's thread only."""

    def replace(self, objects: Sequence[JsonObject]) -> None:
        """These are all."""

    def upsert(self, changed: JsonObject) -> None:
        """This one is new or different."""

    def remove(self, gone: JsonObject) -> None:
        """This one is gone."""


class ListWatch(Protocol):
    """The part of the API that a reflector needs."""

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        """What is kept of all objects, and the version to watch from."""

    def watch(self, path: str, query: Mapping[str, str], *, version: str) -> AbstractContextManager[Watch]:
        """Changes since `version`."""


class Reflector:
    """Feeds `sink`; whatever goes wrong, it lists anew after a second."""

    def __init__(
        self,
        *,
        name: str,
        api: ListWatch,
        path: str,
        query: Mapping[str, str],
        sink: Sink,
        keep: Keep = whole,
    ) -> None:
        self.name = name
        self._api = api
        self._path = path
        self._query = query
        self._sink = sink
        self._keep = keep
        self._synced = False
        self._problem: str | None = None
        self._open: Watch | None = None
        self._stopping = threading.Event()
        self._loop = Loop(name=f"watch-{name}", step=self._step, retry_s=_RETRY_S)

    @property
    def synced(self) -> bool:
        """A complete list has arrived once; what is held may be old while `problem` stands."""
        return self._synced

    @property
    def problem(self) -> str | None:
        """Why the server refuses to list or watch; None also while it only cannot be reached."""
        return self._problem

    def start(self) -> None:
        """List and watch in a thread of its own."""
        self._loop.start()

    def ask_to_stop(self) -> None:
        """End the thread soon."""
        self._stopping.set()
        if self._open is not None:
            self._open.close()
        self._loop.ask_to_stop()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._loop.join(timeout_s)

    def _step(self) -> float:
        try:
            objects, version = self._api.list_all(self._path, self._query, self._keep)
            self._sink.replace(objects)
            self._synced, self._problem = True, None
            logger.debug("listed", extra={"list": self.name, "objects": len(objects)})
            while not self._stopping.is_set():
                version = self._follow(version)
        except ApiError as error:
            if self._stopping.is_set():
                return 0.0
            if error.status == 410:  # Expired: the version is too old to watch from
                return 0.0
            logger.warning("watch failed", extra={"list": self.name, "error": error.message})
            if 400 <= error.status < 500:
                self._problem = _problem(self.name, error)
            return _RETRY_S
        return 0.0

    def _follow(self, version: str) -> str:
        """Until the watch ends by itself; the version to go on from."""
        with self._api.watch(self._path, self._query, version=version) as watch:
            self._open = watch
            if self._stopping.is_set():  # nobody closes it any more
                return version
            try:
                for event in watch:
                    kind, changed = text(event.get("type")), obj(event.get("object"))
                    if kind == "ERROR":
                        code = changed.get("code")
                        raise ApiError(
                            status=code if isinstance(code, int) else 500,
                            message=text(changed.get("message")),
                        )
                    version = text(dig(changed, "metadata", "resourceVersion")) or version
                    if kind in ("ADDED", "MODIFIED"):
                        self._sink.upsert(changed)
                    elif kind == "DELETED":
                        self._sink.remove(changed)
            finally:
                self._open = None
        return version


def _problem(name: str, error: ApiError) -> str:
    if error.status == 404:
        return f"the API server does not know {name}; an administrator has to apply Aliquot's manifests again"
    return f"Aliquot's webhook cannot watch {name}; check its ClusterRole ({error.message})"
