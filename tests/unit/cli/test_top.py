# SPDX-License-Identifier: Apache-2.0
import io
from typing import Any

import pytest

from aliquot_cli import output
from aliquot_cli.cards import cards
from aliquot_cli.output import Printer
from aliquot_cli.top import document, render
from tests.unit.cli.kit import MIB, allocated, device, resource_slice


@pytest.fixture
def printer() -> Printer:
    return Printer(form="table", stream=io.StringIO(), colours=False)


def test_each_gpu_is_shown_with_its_shares(printer: Printer) -> None:
    data = {"limit": 9000 * MIB, "used": 4500 * MIB, "peak": 6000 * MIB, "denied": 3, "processes": 1}
    claims = [
        allocated("a", pod="train", data=data, memory="8000Mi", cores="30", shares="1"),
        allocated("b", memory="2Gi", cores="0", shares="1"),
    ]
    assert render(cards([resource_slice("n1", device())], claims), printer) == (
        "          MEMORY                  LIMIT            USED    CORES   PEAK    DENIED  PODS\n"
        "n1/GPU-1  [##########----------]  11048Mi/22578Mi  4500Mi  30/100                  NVIDIA L4\n"
        "  team/a  [##########----------]  9000Mi           4500Mi  30      6000Mi  3       train\n"
        "  team/b  [--------------------]  2Gi              -       0       -       -       b\n"
        "1 GPU, 2 shares: 11048Mi of 22578Mi given (49%), 4500Mi in use (41% of what is given)\n"
    )


def test_a_sick_gpu_and_one_that_left_its_slice_are_marked() -> None:
    taint = {"key": "gpu.aliquot.dev/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    found = cards(
        [resource_slice("n1", device("gpu-1", taints=[taint]))],
        [allocated("a", device="gpu-2", memory="1Gi")],
    )
    shown = render(found, Printer(form="table", stream=io.StringIO(), colours=True))
    assert "gpu.aliquot.dev/unhealthy=xid-79:NoSchedule" in shown
    assert "not published" in shown
    assert "\033[31mn1/GPU-1" in shown


def test_nothing_is_said_to_be_nothing(printer: Printer) -> None:
    assert "aliquot doctor" in render((), printer)


def test_machines_get_bytes() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    data = {"limit": MIB, "used": 1, "peak": 2, "denied": 0, "processes": 1, "throttled_s": 1.5}
    within = {"type": "WithinQuota", "status": "True", "reason": "WithinQuota", "message": ""}
    claim = allocated("a", data=data, conditions=[within], memory="1Mi", cores="1", shares="1")
    [shown] = document(cards([resource_slice("n1", device(taints=[taint]))], [claim]))
    [share] = _shares(shown)
    assert shown["taken"] == {"memory": MIB, "cores": 1, "shares": 1}
    assert shown["taints"] == [taint]
    assert (share["limit"], share["used"], share["throttledSeconds"]) == (MIB, 1, 1.5)
    assert share["conditions"] == {"WithinQuota": "WithinQuota"}


def _shares(shown: dict[str, object]) -> list[dict[str, Any]]:
    shares = shown["shares"]
    assert isinstance(shares, list)
    return shares


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 100, "[----------]"),
        (1, 100, "[#---------]"),
        (50, 100, "[#####-----]"),
        (100, 100, "[##########]"),
        (250, 100, "[##########]"),
        (1, 0, "[----------]"),
    ],
)
def test_bars(part: int, whole: int, shown: str) -> None:
    assert output.bar(part, whole, width=10) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(None, "-"), (0, "0Mi"), (MIB, "1Mi"), (8 << 30, "8Gi"), (8000 * MIB, "8000Mi"), (3 << 40, "3.0Ti")],
)
def test_sizes(size: int | None, shown: str) -> None:
    assert output.size(size) == shown


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "wanted"),
    [
        (_Terminal(), {}, True),
        (_Terminal(), {"NO_COLOR": "1"}, False),
        (_Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals(stream: io.StringIO, environment: dict[str, str], wanted: bool) -> None:
    assert output.colours_wanted(stream, environment) is wanted


@pytest.mark.parametrize(
    ("stream", "written"),
    [(_Terminal(), "\r\033[Kone\r\033[Ktwo\r\033[K"), (io.StringIO(), "")],
    ids=["terminal", "file"],
)
def test_progress_is_for_terminals_and_leaves_nothing(stream: io.StringIO, written: str) -> None:
    with output.Progress(stream=stream) as progress:
        progress.say("one")
        progress.say("two")
    assert stream.getvalue() == written
