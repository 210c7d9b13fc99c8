# SPDX-License-Identifier: Apache-2.0
"""TLS contexts and the files that they are made of."""

import ssl
from pathlib import Path

from aliquot_agent.trust import Trust


def test_a_context_is_made_once_and_again_when_a_file_of_it_is_another(tmp_path: Path) -> None:
    authority, key = tmp_path / "ca.crt", tmp_path / "tls.key"
    trust = Trust(make=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files=[authority, str(key)])
    before = trust.context()
    assert trust.context() is before
    for path in (authority, key):
        path.write_text("old")
        made = trust.context()
        assert made is not before
        renewed = path.with_suffix(".new")
        renewed.write_text("new")  # of the same size
        renewed.rename(path)
        before = trust.context()
        assert before is not made
        assert trust.context() is before
