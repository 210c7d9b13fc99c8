# SPDX-License-Identifier: Apache-2.0
"""ShareConfig: strict decoding, and which wish counts."""

import pytest

from aliquot_api import config
from aliquot_api.config import OverQuota, ShareConfig, Sharing
from aliquot_api.errors import InvalidInput

HEADER = {"apiVersion": config.API_VERSION, "kind": config.KIND}


@pytest.mark.parametrize(
    "wish",
    [
        ShareConfig(),
        ShareConfig(sharing=Sharing.MPS),
        ShareConfig(sharing=Sharing.EXCLUSIVE, over_quota=OverQuota.EVICT),
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
        (HEADER | {"overQuota": None}, "f.overQuota"),
        (HEADER | {"overquota": "kill"}, "f.overquota"),
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


def test_refuses_two_wishes_of_one_source() -> None:
    wishes = [ShareConfig(sharing=Sharing.MPS), ShareConfig(sharing=Sharing.SHIM)]
    with pytest.raises(InvalidInput, match="twice"):
        config.merge(class_configs=[], claim_configs=wishes, field="f")
