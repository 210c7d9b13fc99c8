# SPDX-License-Identifier: Apache-2.0
"""List and watch, with everything that goes wrong with them."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from aliquot_api.wire import JsonObject
from aliquot_webhook.kube import ApiError, Keep, Watch, whole
from aliquot_webhook.loops import stop_all
from aliquot_webhook.reflector import Reflector

TIMEOUT_S = 20


class ScriptedWatch(Watch):
    """Gives the events that the test puts in; None ends it, an error breaks it."""

    def __init__(self, events: "queue.Queue[object]") -> None:
        self._events = events

    def __iter__(self) -> Iterator[JsonObject]:
        while (event := self._events.get(timeout=TIMEOUT_S)) is not None:
            if isinstance(event, Exception):
                raise event
            assert isinstance(event, dict)
            yield event

    def close(self) -> None:
        self._events.put(None)


class ScriptedServer:
    """Lists what it holds; its watches are scripted."""

    def __init__(self) -> None:
        self.objects: list[JsonObject] = []
        self.refuse: ApiError | None = None
        self.events: queue.Queue[object] = queue.Queue()
        self.watched_from: queue.Queue[str] = queue.Queue()

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        if self.refuse is not None:
            raise self.refuse
        return [one for each in self.objects if (one := keep(each)) is not None], "10"

    @contextmanager
    def watch(self, path: str, query: Mapping[str, str], *, version: str) -> Iterator[Watch]:
        self.watched_from.put(version)
        yield ScriptedWatch(self.events)


class Recorder:
    """A sink that tells what it was told."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[str, object]] = queue.Queue()

    def replace(self, objects: Sequence[JsonObject]) -> None:
        self.told.put(("replace", len(objects)))

    def upsert(self, changed: JsonObject) -> None:
        self.told.put(("upsert", changed["id"]))

    def remove(self, gone: JsonObject) -> None:
        self.told.put(("remove", gone["id"]))

    def next(self) -> tuple[str, object]:
        return self.told.get(timeout=TIMEOUT_S)


def event(kind: str, version: str, **fields: Any) -> dict[str, object]:
    return {"type": kind, "object": {"metadata": {"resourceVersion": version}, **fields}}


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def reflector(server: ScriptedServer, sink: Recorder) -> Iterator[Reflector]:
    reflector = Reflector(name="things", api=server, path="/things", query={}, sink=sink)
    yield reflector
    stop_all(reflector)
    assert "watch-things" not in {thread.name for thread in threading.enumerate()}


def test_what_happens_is_passed_on_and_the_next_watch_goes_on_from_there(
    server: ScriptedServer, sink: Recorder, reflector: Reflector
) -> None:
    reflector.start()
    assert sink.next() == ("replace", 0)
    assert reflector.synced
    for each in (
        event("ADDED", "11", id="a"),
        event("MODIFIED", "12", id="a"),
        event("DELETED", "13", id="a"),
        event("BOOKMARK", "20"),
    ):
        server.events.put(each)
    assert [sink.next() for _ in range(3)] == [("upsert", "a"), ("upsert", "a"), ("remove", "a")]
    server.events.put(None)

    assert server.watched_from.get(timeout=TIMEOUT_S) == "10"
    assert server.watched_from.get(timeout=TIMEOUT_S) == "20"


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(event("ERROR", "", code=410, message="too old"), id="expired"),
        pytest.param(event("ERROR", "", message="?"), id="an error without a code"),
        pytest.param(ApiError(status=0, message="broken"), id="a broken connection"),
        pytest.param(RuntimeError("fault"), id="a fault of ours"),
    ],
)
def test_after_a_failure_everything_is_listed_anew(
    server: ScriptedServer, sink: Recorder, reflector: Reflector, failure: object
) -> None:
    reflector.start()
    assert sink.next() == ("replace", 0)
    server.objects = [{"id": "a"}]
    server.events.put(failure)

    assert sink.next() == ("replace", 1)
    assert reflector.problem is None


def test_a_refusal_is_a_problem_until_it_is_lifted(
    server: ScriptedServer, sink: Recorder, reflector: Reflector
) -> None:
    server.refuse = ApiError(status=403, message="things is forbidden")
    asked = threading.Event()
    original = server.list_all

    def list_all(path: str, query: Mapping[str, str], keep: Keep = whole) -> tuple[list[JsonObject], str]:
        if reflector.problem is not None:
            asked.set()
            server.refuse = None
        return original(path, query, keep)

    server.list_all = list_all  # type: ignore[method-assign] # to see the second try
    reflector.start()
    assert asked.wait(TIMEOUT_S)
    assert sink.next() == ("replace", 0)
    assert reflector.synced


def test_a_server_that_cannot_be_reached_is_no_answer(
    server: ScriptedServer, sink: Recorder, reflector: Reflector
) -> None:
    server.refuse = ApiError(status=0, message="refused")
    asked = threading.Semaphore(0)

    def list_all(path: str, query: Mapping[str, str], keep: Keep = whole) -> tuple[list[JsonObject], str]:
        asked.release()
        assert server.refuse is not None
        raise server.refuse

    server.list_all = list_all  # type: ignore[method-assign] # to count the tries
    reflector.start()
    for _ in range(2):
        assert asked.acquire(timeout=TIMEOUT_S)
    assert (reflector.synced, reflector.problem) == (False, None)
