# SPDX-License-Identifier: Apache-2.0
"""Settings from flags and variables."""

from dataclasses import fields

import pytest

from aliquot_controller.settings import ControllerSettings
from aliquot_webhook.budgets import quota_caps
from aliquot_webhook.settings import Settings, read


def settings(*argv: str, **environ: str) -> Settings:
    return read(Settings, prog="aliquot-webhook", argv=argv, environ=environ)


def test_a_flag_goes_before_a_variable_and_that_before_the_default() -> None:
    assert settings().template_grace_s == 3600
    assert settings(ALIQUOT_TEMPLATE_GRACE_S="600").template_grace_s == 600
    assert settings("--template-grace-s", "300", ALIQUOT_TEMPLATE_GRACE_S="600").template_grace_s == 300


def test_every_kind_of_value_is_understood() -> None:
    given = settings("--port", "1", "--extra-hosts", "a, b,", "--allow-privileged-whole-gpu", "TRUE")

    assert (given.port, given.extra_hosts, given.allow_privileged_whole_gpu) == (1, ("a", "b"), True)


def test_names_and_hosts_come_out_of_them() -> None:
    given = settings("--resource-count", "nvidia.com/gpu", "--namespace", "gpu")

    assert given.policy.resources.count == "nvidia.com/gpu"
    assert given.hosts[0] == "aliquot-webhook.gpu.svc"


@pytest.mark.parametrize("kind", [Settings, ControllerSettings])
def test_help_names_every_setting(
    kind: type[Settings] | type[ControllerSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(kind, prog="aliquot", argv=["--help"], environ={})

    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"--{each.name.replace('_', '-')} " in said for each in fields(kind))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--port", "many"], "port: invalid value 'many'"),
        (["--template-grace-s", "0"], "template_grace_s"),
        (["--template-grace-s", "179"], "template_grace_s: invalid value 179.0: want at least 180"),
        (["--template-grace-s", "600", "--api-request-limit-s", "300"], "want at least 660"),
        (["--max-templates", "0"], "max_templates"),
        (
            ["--client-names", "kube-apiserver"],
            "client_names: invalid value",
        ),
        (["--api-timeout-s", "nan"], "api_timeout_s"),
        (["--allow-privileged-whole-gpu", "1"], "true or false"),
        (["--log-level", "LOUD"], "log_level"),
        (["--unknown", "1"], "unrecognized"),
    ],
)
def test_bad_settings_end_the_start_with_a_word(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        settings(*argv)
    assert says in capsys.readouterr().err


def test_the_controller_has_its_own() -> None:
    given = read(ControllerSettings, prog="aliquot-controller", argv=[], environ={"ALIQUOT_NAMESPACE": "x"})

    assert (given.namespace, given.stale_claims) == ("x", "release")


def test_a_bad_setting_of_the_controller_ends_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(ControllerSettings, prog="aliquot-controller", argv=["--stale-claims", "kill"], environ={})
    assert "want one of off, report, release" in capsys.readouterr().err


def test_webhook_and_controller_read_a_quota_alike() -> None:
    argv = ["--memory-factor", "1024", "--resource-memory", "example.com/gpumem"]
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.example.com/gpumem": "2"}}}
    for kind in (Settings, ControllerSettings):
        given = read(kind, prog="aliquot", argv=argv, environ={})
        [cap] = quota_caps(quota, given.quota_policy)
        assert cap.limit == 2 * 1024**3
