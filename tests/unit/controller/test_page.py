# SPDX-License-Identifier: Apache-2.0
"""The controller's pages, and clients that do not behave."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from aliquot_controller.page import Page


@pytest.fixture
def page() -> Iterator[Page]:
    served = Page(host="127.0.0.1", port=0, pages={"/healthz": lambda: b"ok\n"})
    served.start()
    yield served
    served.stop()


def test_pages_and_nothing_else(page: Page) -> None:
    base = f"http://127.0.0.1:{page.port}"
    with urllib.request.urlopen(f"{base}/healthz", timeout=5) as answer:
        assert answer.read() == b"ok\n"
    with pytest.raises(urllib.error.HTTPError) as no:
        urllib.request.urlopen(f"{base}/other", timeout=5)
    assert no.value.code == 404


def test_more_silent_clients_than_there_is_room_for_are_turned_away_or_end(page: Page) -> None:
    silent = [socket.create_connection(("127.0.0.1", page.port), timeout=10) for _ in range(30)]
    for client in silent:
        assert client.recv(1) == b""  # at once, or after a few seconds
        client.close()
    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/healthz", timeout=5) as answer:
        assert answer.status == 200
