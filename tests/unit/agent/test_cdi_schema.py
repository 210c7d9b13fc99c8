# SPDX-License-Identifier: Apache-2.0
"""Our CDI specs against the fields that the CDI specification documents for their version.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md, as of 0.5.0: names, which of them
must be there, and that there are no others. A runtime skips a spec that it cannot read, and the container
does not start.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]  # its types are a package of their own
import pytest

from aliquot_agent import cdi
from tests.unit.agent.kit import Node, make_claim, result

SIM: Final = Path(__file__).resolve().parents[3] / "build" / "sim"
TEXT: Final = {"type": "string", "minLength": 1}
TEXTS: Final = {"type": "array", "items": {"type": "string"}}
NUMBER: Final = {"type": "integer"}


def fields(required: str, **others: object) -> dict[str, object]:
    """An object with just these fields; `required` names those that must be there."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": others,
    }


NODE_FIELDS: Final = fields(
    "path",
    path=TEXT,
    hostPath=TEXT,
    type={"enum": ["b", "c", "u", "p"]},
    major=NUMBER,
    minor=NUMBER,
    fileMode=NUMBER,
    permissions={"type": "string", "pattern": "^[rwm]*$"},
    uid=NUMBER,
    gid=NUMBER,
)
MOUNT: Final = fields(
    "hostPath containerPath",
    hostPath=TEXT,
    containerPath={"type": "string", "pattern": "^/"},
    type=TEXT,  # since 0.4.0
    options=TEXTS,
)
HOOK: Final = fields(
    "hookName path",
    hookName={
        "enum": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    },
    path={"type": "string", "pattern": "^/"},
    args=TEXTS,
    env=TEXTS,
    timeout=NUMBER,
)
EDITS: Final = {
    **fields(
        "",
        env={"type": "array", "items": {"type": "string", "pattern": "^[^=]+=.*$"}},
        deviceNodes={"type": "array", "items": NODE_FIELDS},
        mounts={"type": "array", "items": MOUNT},
        hooks={"type": "array", "items": HOOK},
    ),
    "minProperties": 1,
}
DEVICE: Final = fields(
    "name containerEdits",
    name={"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
    containerEdits=EDITS,
)
SPEC: Final = fields(
    "cdiVersion kind devices",
    cdiVersion={"enum": ["0.3.0", "0.4.0", "0.5.0"]},
    kind={"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_-]*$"},
    devices={"type": "array", "items": DEVICE, "minItems": 1},
    containerEdits=EDITS,
)


def check(spec: object) -> None:
    """Raises ValidationError for what is no CDI spec."""
    jsonschema.validate(spec, SPEC)


def prepared_spec(node: Node, *results: dict[str, Any]) -> Any:
    """The spec of a claim."""
    ref = node.server.add(make_claim(*results))
    node.claims().prepare(ref)
    return json.loads(cdi.spec_path(node.cdi_dir, ref.uid).read_text())


def test_a_share_is_a_valid_spec(node: Node) -> None:
    check(prepared_spec(node, result(node.gpus.gpus[0], request="main/large")))


def test_shares_and_a_whole_gpu_in_one_claim_are_a_valid_spec(node: Node) -> None:
    one, two = node.gpus.gpus
    spec = prepared_spec(node, result(one), result(two, memory=None, cores="100", request="whole"))
    check(spec)
    assert len({device["name"] for device in spec["devices"]}) == 2


@pytest.mark.skipif(not (SIM / "aliquot-sim").exists(), reason="the simulated GPU is not built (make sim)")
def test_the_simulated_gpus_own_spec_is_valid(tmp_path: Path) -> None:
    tool = [str(SIM / "aliquot-sim")]
    root = ["--root", str(tmp_path / "sim")]
    subprocess.run([*tool, "init", "--gpu", "l4:2", "--node", "n", *root], check=True, timeout=30)
    shown = subprocess.run(
        [*tool, "cdi", "--lib-dir", str(SIM), *root], check=True, capture_output=True, timeout=30
    )
    check(json.loads(shown.stdout))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"annotations": {}}, id="a field of a later version"),
        pytest.param({"devices": []}, id="no device"),
        pytest.param({"kind": "aliquot"}, id="a kind without a vendor"),
        pytest.param({"containerEdits": {"mounts": [{"hostPath": "/a"}]}}, id="a mount without a target"),
        pytest.param({"containerEdits": {}}, id="edits that edit nothing"),
    ],
)
def test_what_is_no_spec_is_noticed(node: Node, change: dict[str, Any]) -> None:
    spec = {**prepared_spec(node, result(node.gpus.gpus[0])), **change}
    with pytest.raises(jsonschema.ValidationError):
        check(spec)
