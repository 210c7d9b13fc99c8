# SPDX-License-Identifier: Apache-2.0
"""Annotation values about containers: every form, and the message for each wrong one."""

import re

import pytest

from aliquot_api import annotations
from aliquot_api.errors import InvalidInput
from aliquot_api.quantity import MIB

CONTAINERS = ("train", "serve")
FIELD = "metadata.annotations[aliquot.dev/x]"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("8Gi", {"train": 8192 * MIB, "serve": 8192 * MIB}, id="one for all"),
        pytest.param("train=8Gi,serve=512Mi", {"train": 8192 * MIB, "serve": 512 * MIB}, id="each"),
        pytest.param(" serve = 1G ", {"serve": 954 * MIB}, id="one of them, decimal, rounded up"),
    ],
)
def test_reads_memory_limits(text: str, wanted: dict[str, int]) -> None:
    assert annotations.memory_limits(text, field=FIELD, containers=CONTAINERS) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("8000", "did you mean 8000Mi?", id="bare number"),
        pytest.param("0", "at least 1Mi", id="nothing"),
        pytest.param("-1Gi", "at least 1Mi", id="negative"),
        pytest.param("", "quantity", id="empty"),
        pytest.param("other=1Gi", "train, serve", id="unknown container"),
        pytest.param("train=1Gi,train=2Gi", "named twice", id="twice"),
        pytest.param("train=1Gi,2Gi", "container=value", id="half a pair"),
        pytest.param("train=", "quantity", id="no value"),
    ],
)
def test_refuses_what_is_no_memory_limit(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(FIELD)) as caught:
        annotations.memory_limits(text, field=FIELD, containers=CONTAINERS)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["101", "-1", "1.5", "x", "", "0x10", "\u0661"])
def test_refuses_cores_beyond_a_percentage(text: str) -> None:
    with pytest.raises(InvalidInput, match="0 to 100"):
        annotations.cores_limits(text, field=FIELD, containers=CONTAINERS)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("true", CONTAINERS),
        ("", ()),
        ("false", ()),
        ("serve", ("serve",)),
        ("serve, train,serve", ("serve", "train")),
    ],
)
def test_chooses_containers(text: str, wanted: tuple[str, ...]) -> None:
    assert annotations.chosen_containers(text, field=FIELD, containers=CONTAINERS) == wanted


def test_refuses_to_choose_a_container_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="train, serve"):
        annotations.chosen_containers("train,other", field=FIELD, containers=CONTAINERS)
