# SPDX-License-Identifier: Apache-2.0
"""Programs that are there already are used if, and only if, their version fits."""

from pathlib import Path

import pytest

from tests.cluster import TestbedError, binaries

RUNC = next(component for component in binaries.OTHERS if component.name == "runc")


def install_runc(folder: Path, version: str) -> None:
    program = folder / "runc"
    program.write_text(f"#!/bin/sh\necho runc version {version}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        pytest.param(RUNC.version, True, id="the same"),
        pytest.param(f"{RUNC.version.rpartition('.')[0]}.99", True, id="another patch"),
        pytest.param("1.1.5+ds1", False, id="an old minor"),
        pytest.param(f"1{RUNC.version}", False, id="a number that only ends alike"),
    ],
)
def test_an_installed_program_is_used_if_its_minor_version_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    install_runc(tmp_path, version)
    monkeypatch.setenv("ALIQUOT_TESTBED_BIN", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")

    assert binaries.find_installed(RUNC) == (tmp_path if fits else None)


def test_an_unknown_kubernetes_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TestbedError, match=r"'1\.12' is not known here; choose one of .*1\.37"):
        binaries.kubernetes("1.12")


@pytest.mark.parametrize("component", [binaries.kubernetes("1.37"), *binaries.OTHERS], ids=lambda c: c.name)
def test_a_build_is_named_by_component_and_version(component: binaries.Component) -> None:
    name, version, content = component.key.rsplit("-", 2)
    assert component.name.startswith(name)
    assert version == component.version
    assert len(content) == 8
