# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from aliquot_agent import sharedir
from aliquot_cli.__main__ import main

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
MIB = 1024**2


def shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["share", "show", str(directory), "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


@pytest.fixture
def share(tmp_path: Path) -> Path:
    directory = tmp_path / "deep" / "share"
    arguments = ["share", "create", str(directory), "--gpu", UUID, "--memory", "512Mi", "--cores", "30"]
    assert main(arguments) == 0
    return directory


def test_a_new_share_is_shown_empty(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(share, capsys) == {
        "gpu": UUID,
        "limit": 512 * MIB,
        "used": 0,
        "peak": 0,
        "denied": 0,
        "processes": 0,
    }


def test_a_limit_changes_in_place(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inode = (share / "quota").stat().st_ino
    assert main(["share", "set", str(share), "--memory", "1Gi", "--cores", "50"]) == 0
    assert shown(share, capsys)["limit"] == 1024 * MIB
    assert (share / "quota").stat().st_ino == inode


def test_a_share_names_the_log_of_refusals(tmp_path: Path) -> None:
    share = tmp_path / "logged"
    command = ["share", "create", str(share), "--gpu", UUID, "--memory", "1Gi", "--log", "/var/log/shim"]
    assert main(command) == 0
    with sharedir.ShareFiles(path=share) as files:
        assert files.quota().log_path == "/var/log/shim"


def test_a_share_is_shown_to_people(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", "show", str(share)]) == 0
    assert "limit      512.0 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--gpu", UUID, "--memory", "8000"], "did you mean 8000Mi?", id="no unit"),
        pytest.param(["--gpu", UUID, "--memory", "much"], "want a Kubernetes quantity", id="no number"),
        pytest.param(["--gpu", "0", "--memory", "8Gi"], "want GPU-xxxxxxxx", id="no UUID"),
        pytest.param(["--gpu", UUID, "--memory", "8Gi", "--cores", "101"], "want 0 to 100", id="cores"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["share", "create", str(tmp_path / "share"), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_share_is_not_made_twice(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", "create", str(share), "--gpu", UUID, "--memory", "1Gi"]) == 1
    assert "is a share already" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["show", "set"])
def test_what_is_no_share_is_an_error(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["--memory", "1Gi"] if verb == "set" else []
    assert main(["share", verb, str(tmp_path), *extra]) == 1
    assert "quota" in capsys.readouterr().err


def test_setting_nothing_is_an_error(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", "set", str(share)]) == 1
    assert "want --memory, --cores or both" in capsys.readouterr().err
