# SPDX-License-Identifier: Apache-2.0
"""What stays on a node when Aliquot is uninstalled: nothing, unless a claim is still prepared."""

from pathlib import Path

import pytest

from aliquot_agent.cleanup import clean
from aliquot_agent.cleanup import main as clean_node


@pytest.fixture
def node(tmp_path: Path) -> Path:
    for name in ("plugin/claims", "registry", "state/lib/abc", "state/claims"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("plugin/lock", "plugin/health.json", "state/lib/abc/libaliquot.so", "spec.json"):
        (tmp_path / name).touch()
    for name in ("gpu.aliquot.dev-1234.sock", "gpu.nvidia.com.sock"):
        (tmp_path / "registry" / name).touch()
    return tmp_path


def run(node: Path) -> tuple[str, ...]:
    paths = [node / "state", node / "spec.json", node / "never-made"]
    return clean(plugin_dir=node / "plugin", registry_dir=node / "registry", paths=paths)


def files(node: Path) -> set[str]:
    return {str(path.relative_to(node)) for path in node.rglob("*")}


def test_folders_are_emptied_and_only_our_sockets_go(node: Path) -> None:
    assert run(node) == ()
    assert files(node) == {"plugin", "registry", "state", "registry/gpu.nvidia.com.sock"}
    assert run(node) == ()  # once more is no harm


def test_a_prepared_claim_keeps_everything(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node / "plugin/claims/uid-1.json").touch()
    before = files(node)
    assert run(node) == ("uid-1",)
    words = [f"--plugin-dir={node / 'plugin'}", f"--registry-dir={node / 'registry'}", str(node / "state")]
    assert clean_node(words) == 0
    assert "uid-1" in capsys.readouterr().err
    assert files(node) == before


def test_a_link_is_removed_and_not_followed(node: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    (node / "state/link").symlink_to(elsewhere)
    assert run(node) == ()
    assert (elsewhere / "kept").exists()
