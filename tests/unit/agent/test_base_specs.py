# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path

import pytest

from aliquot_agent.basespecs import BaseSpecs
from aliquot_agent.errors import Refused

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"

NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia5")


def specs(*directories: Path, nodes: tuple[str, ...] = NODES) -> BaseSpecs:
    """Specs in `directories`; the device nodes are on the host's side of the last one."""
    root = directories[-1] / "host"
    for node in nodes:
        link = root / node.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to("/dev/null")
    return BaseSpecs(directories=directories, kind="nvidia.com/gpu", host_root=root, moment_s=0.0)


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


def test_a_burst_looks_once(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(json.dumps(document(UUID)))
    host = specs(tmp_path)  # makes the nodes
    burst = BaseSpecs(
        directories=(tmp_path,), kind="nvidia.com/gpu", host_root=tmp_path / "host", moment_s=3600
    )
    for each in (host, burst):
        assert each.find(gpu_uuid=UUID, index=0, minor=0) == f"nvidia.com/gpu={UUID}"
    (tmp_path / "host" / "dev" / "nvidia0").unlink()
    assert burst.find(gpu_uuid=UUID, index=0, minor=0) == f"nvidia.com/gpu={UUID}"
    with pytest.raises(Refused, match="not on this node"):
        host.find(gpu_uuid=UUID, index=0, minor=0)


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


def test_a_spec_that_is_right_counts_at_once_beside_one_that_was_right_before(tmp_path: Path) -> None:
    base = specs(tmp_path)
    (tmp_path / "old.json").write_text(json.dumps(document("0")))
    assert base.find(gpu_uuid=UUID, index=0, minor=0) == "nvidia.com/gpu=0"
    (tmp_path / "host/dev/nvidiactl").unlink()
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": UUID, "containerEdits": {"env": ["A=1"]}}]}
    (tmp_path / "new.json").write_text(json.dumps(spec))
    assert base.find(gpu_uuid=UUID, index=0, minor=0) == f"nvidia.com/gpu={UUID}"


def test_the_specs_of_all_claims_are_not_listed_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n.json").write_text(json.dumps(document(UUID)))
    base, listed, listdir = specs(tmp_path), [], os.listdir

    def counted(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr("aliquot_agent.basespecs._FRESH_S", 3600.0)
    monkeypatch.setattr("os.listdir", counted)
    for _ in range(3):
        assert base.find(gpu_uuid=UUID, index=0, minor=0) == f"nvidia.com/gpu={UUID}"
    assert len(listed) == 1


@pytest.mark.parametrize("missing", ["/dev/nvidia0", "/dev/nvidiactl"])
def test_access_through_a_device_node_that_is_not_there_is_refused(tmp_path: Path, missing: str) -> None:
    (tmp_path / "n.json").write_text(json.dumps(document(UUID)))
    there = tuple(node for node in NODES if node != missing)
    with pytest.raises(Refused, match=f"names {missing}, which is not on this node"):
        specs(tmp_path, nodes=there).find(gpu_uuid=UUID, index=0, minor=0)


def test_a_plain_file_is_no_device_node(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(json.dumps(document(UUID)))
    base = specs(tmp_path)
    (tmp_path / "host/dev/nvidia0").unlink()
    (tmp_path / "host/dev/nvidia0").write_text("")
    with pytest.raises(Refused, match="is no device node"):
        base.find(gpu_uuid=UUID, index=0, minor=0)


def test_device_nodes_of_the_whole_spec_count(tmp_path: Path) -> None:
    spec = {**document(UUID), "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-uvm"}]}}
    (tmp_path / "n.json").write_text(json.dumps(spec))
    with pytest.raises(Refused, match="names /dev/nvidia-uvm"):
        specs(tmp_path).find(gpu_uuid=UUID, index=0, minor=0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("null", id="null"),
        pytest.param('{"kind": "nvidia.com/gpu", "devices": 7}', id="devices a number"),
        pytest.param('{"kind": "nvidia.com/gpu", "devices": [7, {}]}', id="device a number"),
        pytest.param(
            '{"kind": "nvidia.com/gpu", "devices": [{"name": "x", "containerEdits": [1]}]}', id="edits"
        ),
    ],
)
def test_a_spec_of_another_shape_is_no_access_and_no_crash(tmp_path: Path, text: str) -> None:
    (tmp_path / "n.json").write_text(text)
    with pytest.raises(Refused, match="no CDI spec gives access"):
        specs(tmp_path).find(gpu_uuid=UUID, index=0, minor=0)
