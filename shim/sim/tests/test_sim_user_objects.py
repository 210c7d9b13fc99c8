# SPDX-License-Identifier: Apache-2.0
"""User objects live until program and graphs have let go of them; their end is told once."""

import pytest

from shim.sim.tests.simnode import Node, Probe, wait_until

INVALID_VALUE = 1
NOT_PERMITTED = 800
MOVE = 1


@pytest.fixture
def probe(node: Node) -> Probe:
    started = node.probe()
    started.start()
    return started


def user_object(probe: Probe, value: int, references: int = 1) -> int:
    answer = probe.call("make_user_object", value, references)
    assert answer.code == 0
    made: int = answer.outputs[0]
    return made


def ended(probe: Probe) -> list[int]:
    """Which ones, by their values; none of their functions may call the driver."""
    calls = probe.call("called_on_host").outputs
    assert {code for _, code in calls} <= {NOT_PERMITTED}
    return [value for value, _ in calls]


def wait_for_end(probe: Probe, *values: int) -> None:
    wait_until(lambda: ended(probe) == list(values), f"the end of {values}")


def graph(probe: Probe) -> int:
    made: int = probe.call("cuGraphCreate", {"out": 0}, 0).outputs[0]
    return made


def test_the_last_reference_ends_an_object(probe: Probe) -> None:
    made = user_object(probe, 7, 2)
    assert probe.code("cuUserObjectRetain", made, 3) == 0
    assert probe.code("cuUserObjectRelease", made, 4) == 0
    assert probe.code("cuUserObjectRelease", made, 2) == INVALID_VALUE
    assert ended(probe) == []
    assert probe.code("cuUserObjectRelease", made, 1) == 0
    wait_for_end(probe, 7)
    assert probe.code("cuUserObjectRelease", made, 1) == INVALID_VALUE


@pytest.mark.parametrize("flags", [MOVE, 0], ids=["moved", "retained"])
def test_a_graph_holds_what_it_was_given(probe: Probe, flags: int) -> None:
    made, holder = user_object(probe, 8), graph(probe)
    assert probe.code("cuGraphRetainUserObject", holder, made, 1, flags) == 0
    if flags != MOVE:
        assert probe.code("cuUserObjectRelease", made, 1) == 0
    assert ended(probe) == []
    assert probe.code("cuGraphDestroy", holder) == 0
    wait_for_end(probe, 8)


def test_clones_and_executables_hold_it_as_well(probe: Probe) -> None:
    made, holder = user_object(probe, 9), graph(probe)
    assert probe.code("cuGraphRetainUserObject", holder, made, 1, MOVE) == 0
    clone = probe.call("cuGraphClone", {"out": 0}, holder).outputs[0]
    executable = probe.call("cuGraphInstantiateWithFlags", {"out": 0}, holder, 0).outputs[0]
    assert probe.code("cuGraphDestroy", holder) == 0
    assert probe.code("cuGraphDestroy", clone) == 0
    assert ended(probe) == []
    assert probe.code("cuGraphExecDestroy", executable) == 0
    wait_for_end(probe, 9)


def test_a_graph_lets_go_when_told(probe: Probe) -> None:
    made, holder = user_object(probe, 5), graph(probe)
    assert probe.code("cuGraphRetainUserObject", holder, made, 1, MOVE) == 0
    assert probe.code("cuGraphReleaseUserObject", holder, made, 2) == INVALID_VALUE
    assert probe.code("cuGraphReleaseUserObject", holder, made, 1) == 0
    wait_for_end(probe, 5)
    assert probe.code("cuGraphReleaseUserObject", holder, made, 1) == INVALID_VALUE


def test_what_makes_no_sense_is_refused(probe: Probe) -> None:
    made, holder = user_object(probe, 6), graph(probe)
    assert probe.call("make_user_object", 1, 0).code == INVALID_VALUE
    assert probe.code("cuUserObjectRetain", made, 0) == INVALID_VALUE
    assert probe.code("cuGraphRetainUserObject", holder, made, 2, MOVE) == INVALID_VALUE
    assert probe.code("cuGraphRetainUserObject", holder, made, 1, 2) == INVALID_VALUE
    assert probe.code("cuGraphRetainUserObject", 0, made, 1, 0) == INVALID_VALUE
