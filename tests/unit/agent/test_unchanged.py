# SPDX-License-Identifier: Apache-2.0
from aliquot_agent.unchanged import same_objects


def test_equal_is_not_the_same() -> None:
    one, other = ["x"], ["x"]
    assert same_objects((one, other), [one, other])
    assert not same_objects((one, other), (other, one))
    assert not same_objects((one,), (one, other))
    assert same_objects((), [])
