# SPDX-License-Identifier: Apache-2.0
import dataclasses
import inspect
from pathlib import Path

import pytest

from aliquot_agent import settings
from aliquot_api.errors import InvalidInput

MIB = 1024**2


def test_defaults_need_only_the_node() -> None:
    loaded = settings.load([], {"NODE_NAME": "n1"})
    assert loaded.node_name == "n1"
    assert loaded.kubeconfig is None
    assert loaded.claims_dir == Path("/run/aliquot-agent/claims")
    assert loaded.checkpoint_dir == Path("/var/lib/kubelet/plugins/gpu.aliquot.dev/claims")
    assert loaded.base_cdi_dirs == (Path("/etc/cdi"), Path("/var/run/cdi"))
    assert (loaded.shares_per_gpu, loaded.context_estimate_bytes) == (16, 512 * MIB)


def test_a_flag_wins_over_the_environment_over_the_default() -> None:
    environ = {"ALIQUOT_SHARES": "8", "ALIQUOT_RESERVE": "1Gi", "ALIQUOT_LOG_LEVEL": "debug"}
    loaded = settings.load(["--node-name", "n", "--reserve", "2Gi"], environ)
    assert (loaded.shares_per_gpu, loaded.reserve_bytes, loaded.log_level) == (8, 2048 * MIB, "debug")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        pytest.param([], "--node-name", id="no node"),
        pytest.param(["--node-name", "n", "--reserve", "lots"], "--reserve", id="no size"),
        pytest.param(["--node-name", "n", "--reserve=-1Mi"], "--reserve", id="negative"),
        pytest.param(["--node-name", "n", "--shares", "0"], "--shares", id="no shares"),
        pytest.param(["--node-name", "n", "--base-cdi-kind", "gpu"], "--base-cdi-kind", id="kind"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments: list[str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings.load(arguments, {})
    assert caught.value.field == field


def test_every_setting_is_explained() -> None:
    source = inspect.getsource(settings.Settings)
    for field in dataclasses.fields(settings.Settings):
        _, _, rest = source.partition(f"    {field.name}: ")
        assert rest.splitlines()[1].strip().startswith('"""'), field.name
