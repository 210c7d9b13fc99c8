# SPDX-License-Identifier: Apache-2.0
"""ShareConfig: strict decoding, and which wish counts."""

import pytest

from aliquot_api import config
from aliquot_api.config import ComputePolicy, OverQuota, Priority, ShareConfig, Sharing, TimeSlice
from aliquot_api.errors import InvalidInput

HEADER = {"apiVersion": config.API_VERSION, "kind": config.KIND}


@pytest.mark.parametrize(
    "wish",
    [
        ShareConfig(),
        ShareConfig(sharing=Sharing.MPS),
        ShareConfig(sharing=Sharing.TIMESLICE),
        ShareConfig(sharing=Sharing.TIMESLICE, time_slice=TimeSlice.SHORT),
        ShareConfig(sharing=Sharing.EXCLUSIVE, over_quota=OverQuota.EVICT),
        ShareConfig(compute_policy=ComputePolicy.STRICT, priority=Priority.HIGH),
    ],
)
def test_decodes_what_it_encodes(wish: ShareConfig) -> None:
    assert config.decode(wish.encode(), field="f") == wish


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        (None, "f"),
        ([], "f"),
        ({}, "f.apiVersion"),
        (HEADER | {"kind": "Other"}, "f.kind"),
        (HEADER | {"sharing": "magic"}, "f.sharing"),
        (HEADER | {"sharing": ["shim"]}, "f.sharing"),
        (HEADER | {"sharing": "timeslice", "timeSlice": "huge"}, "f.timeSlice"),
        (HEADER | {"timeSlice": "short"}, "f.timeSlice"),
        (HEADER | {"sharing": "mps", "timeSlice": "short"}, "f.timeSlice"),
        (HEADER | {"overQuota": None}, "f.overQuota"),
        (HEADER | {"overquota": "kill"}, "f.overquota"),
        (HEADER | {"computePolicy": "hard"}, "f.computePolicy"),
        (HEADER | {"computePolicy": False}, "f.computePolicy"),
        (HEADER | {"computePolicy": "fair", "sharing": "exclusive"}, "f.computePolicy"),
        (HEADER | {"priority": "0"}, "f.priority"),
    ],
)
def test_refuses_anything_else(parameters: object, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        config.decode(parameters, field="f")
    assert caught.value.field == field


def test_a_claim_overrides_the_sharing_of_its_class() -> None:
    merged = config.merge(
        class_configs=[ShareConfig(sharing=Sharing.SHIM)],
        claim_configs=[ShareConfig(), ShareConfig(sharing=Sharing.EXCLUSIVE)],
        field="f",
    )
    assert merged.sharing is Sharing.EXCLUSIVE


def test_the_length_of_a_time_slice_comes_with_the_sharing() -> None:
    short = ShareConfig(sharing=Sharing.TIMESLICE, time_slice=TimeSlice.SHORT)
    plain = ShareConfig(sharing=Sharing.TIMESLICE)
    assert config.merge(class_configs=[short], claim_configs=[], field="f") == short
    assert config.merge(class_configs=[short], claim_configs=[plain], field="f") == plain
    long = ShareConfig(sharing=Sharing.TIMESLICE, time_slice=TimeSlice.LONG)
    with pytest.raises(InvalidInput, match="states timeSlice twice"):
        config.merge(class_configs=[], claim_configs=[short, long], field="f")


@pytest.mark.parametrize(
    ("by_class", "by_claim", "wanted"),
    [
        (OverQuota.KILL, OverQuota.WARN, OverQuota.KILL),
        (OverQuota.WARN, OverQuota.EVICT, OverQuota.EVICT),
        (None, OverQuota.KILL, OverQuota.KILL),
        (OverQuota.WARN, None, OverQuota.WARN),
        (None, None, None),
    ],
)
def test_a_claim_makes_enforcement_stricter_only(
    by_class: OverQuota | None, by_claim: OverQuota | None, wanted: OverQuota | None
) -> None:
    merged = config.merge(
        class_configs=[ShareConfig(over_quota=by_class)],
        claim_configs=[ShareConfig(over_quota=by_claim)],
        field="f",
    )
    assert merged.over_quota is wanted


@pytest.mark.parametrize(
    ("by_class", "by_claim", "wanted"),
    [
        (ComputePolicy.FAIR, ComputePolicy.OFF, ComputePolicy.FAIR),
        (ComputePolicy.FAIR, ComputePolicy.STRICT, ComputePolicy.STRICT),
        (ComputePolicy.OFF, None, ComputePolicy.OFF),
        (None, ComputePolicy.OFF, ComputePolicy.OFF),
        (Priority.LOW, Priority.HIGH, Priority.LOW),
        (Priority.HIGH, Priority.LOW, Priority.LOW),
        (None, Priority.HIGH, Priority.HIGH),
    ],
)
def test_a_claim_takes_no_compute_that_its_class_withholds(
    by_class: ComputePolicy | Priority | None,
    by_claim: ComputePolicy | Priority | None,
    wanted: ComputePolicy | Priority,
) -> None:
    field = "compute_policy" if isinstance(wanted, ComputePolicy) else "priority"
    merged = config.merge(
        class_configs=[ShareConfig(**{field: by_class})],  # type: ignore[arg-type]  # by its value
        claim_configs=[ShareConfig(**{field: by_claim})],  # type: ignore[arg-type]  # by its value
        field="f",
    )
    assert getattr(merged, field) is wanted


def test_refuses_a_policy_of_what_is_not_paced_in_two_pieces() -> None:
    wishes = [ShareConfig(sharing=Sharing.MPS), ShareConfig(compute_policy=ComputePolicy.FAIR)]
    with pytest.raises(InvalidInput, match="no share is paced"):
        config.merge(class_configs=[], claim_configs=wishes, field="f")


def test_refuses_two_wishes_of_one_source() -> None:
    wishes = [ShareConfig(sharing=Sharing.MPS), ShareConfig(sharing=Sharing.SHIM)]
    with pytest.raises(InvalidInput, match="twice"):
        config.merge(class_configs=[], claim_configs=wishes, field="f")
