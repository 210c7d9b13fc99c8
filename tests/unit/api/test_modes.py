# SPDX-License-Identifier: Apache-2.0
import pytest

from aliquot_api import modes
from aliquot_api.config import ShareConfig, Sharing, TimeSlice
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode

SHORT = Mode(Sharing.TIMESLICE, TimeSlice.SHORT)
DEFAULT = Mode(Sharing.TIMESLICE, TimeSlice.DEFAULT)
ANY_LENGTH = Mode(Sharing.TIMESLICE)


@pytest.mark.parametrize("word", modes.WORDS)
def test_a_mode_is_written_as_it_is_read(word: str) -> None:
    assert str(modes.parse(f" {word.upper()} ", field="f")) == word


@pytest.mark.parametrize("text", ["", "magic", "timeslice=", "timeslice=huge", "mps=short", "=short"])
def test_refuses_what_is_no_mode(text: str) -> None:
    with pytest.raises(InvalidInput, match="want one of shim, timeslice, mps, exclusive, timeslice=default"):
        modes.parse(text, field="f")


@pytest.mark.parametrize(
    ("wish", "by"),
    [
        pytest.param(ANY_LENGTH, {SHORT, DEFAULT}, id="any length"),
        pytest.param(SHORT, {SHORT}, id="one length"),
        pytest.param(DEFAULT, {DEFAULT}, id="the default length is a length"),
        pytest.param(modes.MPS, {modes.MPS}, id="mps"),
        pytest.param(modes.SHIM, {modes.SHIM}, id="shim"),
    ],
)
def test_a_wish_is_served_by_gpus_of_its_mode(wish: Mode, by: set[Mode]) -> None:
    offered = {SHORT, DEFAULT, modes.MPS, modes.SHIM, modes.EXCLUSIVE}
    assert {mode for mode in offered if mode.serves(wish)} == by


def test_a_config_that_states_nothing_wishes_the_shim() -> None:
    assert modes.of_config(ShareConfig()) == modes.SHIM
    assert modes.of_config(SHORT.config()) == SHORT
