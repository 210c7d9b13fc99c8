# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path

import pytest

from aliquot_agent.cdi import BaseSpecs
from aliquot_agent.errors import Refused

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"


def specs(*directories: Path) -> BaseSpecs:
    return BaseSpecs(directories=directories, kind="nvidia.com/gpu")


def document(*names: str, kind: str = "nvidia.com/gpu", node: str = "/dev/nvidia0") -> dict[str, object]:
    edits = {"deviceNodes": [{"path": node}, {"path": "/dev/nvidiactl"}]}
    return {"kind": kind, "devices": [{"name": name, "containerEdits": edits} for name in names]}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("n.json", json.dumps(document(UUID)), id="json"),
        pytest.param(
            "n.yaml",
            f"kind: nvidia.com/gpu\ndevices:\n- name: {UUID}\n  containerEdits: {{env: [A=1]}}\n",
            id="yaml",
        ),
    ],
)
def test_a_gpu_is_found_by_its_uuid(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    assert (
        specs(tmp_path / "absent", tmp_path).find(gpu_uuid=UUID, index=3, minor=3) == f"nvidia.com/gpu={UUID}"
    )


def test_a_gpu_is_found_by_its_index_where_names_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(json.dumps(document("0", "3", "all", node="/dev/nvidia5")))
    assert specs(tmp_path).find(gpu_uuid=UUID, index=3, minor=5) == "nvidia.com/gpu=3"


def test_an_index_that_gives_another_gpu_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(json.dumps(document("3", node="/dev/nvidia2")))
    with pytest.raises(Refused, match=r"gives .*/dev/nvidia2.* but GPU 3 is GPU-.* at /dev/nvidia5"):
        specs(tmp_path).find(gpu_uuid=UUID, index=3, minor=5)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(document(UUID, kind="other.com/gpu")), id="other kind"),
        pytest.param(json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": UUID}]}), id="empty edits"),
        pytest.param("{", id="not JSON"),
        pytest.param("[]", id="not an object"),
    ],
)
def test_what_gives_no_access_does_not_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "n.json").write_text(text)
    with pytest.raises(Refused, match="no CDI spec gives access"):
        specs(tmp_path).find(gpu_uuid=UUID, index=0, minor=0)


def test_a_replaced_spec_is_read_again(tmp_path: Path) -> None:
    base, path = specs(tmp_path), tmp_path / "n.json"
    path.write_text(json.dumps(document(UUID)))
    assert base.find(gpu_uuid=UUID, index=0, minor=0)
    replacement = tmp_path / "new"
    replacement.write_text(json.dumps(document("all")))
    os.replace(replacement, path)
    with pytest.raises(Refused, match="no CDI spec gives access"):
        base.find(gpu_uuid=UUID, index=0, minor=0)
