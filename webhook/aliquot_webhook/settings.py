# SPDX-License-Identifier: Apache-2.0
"""Settings of the webhook, and how settings are read: a flag, else a variable, else the default."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_webhook.policy import Policy, ResourceNames

NAME: Final = "aliquot-webhook"
"""Of the Service and of the MutatingWebhookConfiguration."""
SECRET: Final = "aliquot-webhook-tls"
ENVIRONMENT_PREFIX: Final = "ALIQUOT_"

SettingsType = TypeVar("SettingsType")


def setting(default: Any, doc: str) -> Any:  # Any: as dataclasses.field itself
    """A field of a settings class: its type is that of `default`, a tuple is a comma list."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings:
    """What webhook and controller both need."""

    kubeconfig: str = setting("", "kubeconfig file; empty: the pod's service account")
    namespace: str = setting("aliquot-system", "namespace of the webhook's Service and Secret")
    extra_hosts: tuple[str, ...] = setting((), "more names and addresses for the serving certificate")
    api_timeout_s: float = setting(4.0, "time limit of one call to the API server")
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR")
    device_classes: tuple[str, ...] = setting(
        (names.DEVICE_CLASS, names.MIG_DEVICE_CLASS), "DeviceClasses whose claims are checked and counted"
    )
    resource_count: str = setting(names.RESOURCE_COUNT, "resource name: number of GPUs")
    resource_memory: str = setting(names.RESOURCE_MEMORY, "resource name: MiB per GPU")
    resource_memory_percent: str = setting(names.RESOURCE_MEMORY_PERCENT, "resource name: % of memory")
    resource_cores: str = setting(names.RESOURCE_CORES, "resource name: % of compute per GPU")
    resource_priority: str = setting(names.RESOURCE_PRIORITY, "resource name: priority (dropped)")
    memory_factor: int = setting(1, "MiB that one unit of the memory resource stands for")
    reservation_s: float = setting(
        60.0, "a pod's budget is kept for it until its claim is made, at most this long"
    )

    def __post_init__(self) -> None:
        want_positive(self, "api_timeout_s", "memory_factor", "reservation_s")
        if self.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise InvalidInput(
                field="log_level", value=self.log_level, fix="want DEBUG, INFO, WARNING or ERROR"
            )

    @property
    def resources(self) -> ResourceNames:
        """The names of the handled resources."""
        return ResourceNames(
            count=self.resource_count,
            memory=self.resource_memory,
            memory_percent=self.resource_memory_percent,
            cores=self.resource_cores,
            priority=self.resource_priority,
        )

    @property
    def quota_policy(self) -> Policy:
        """What it takes to read a ResourceQuota; the same for webhook and controller."""
        return Policy(resources=self.resources, memory_factor=self.memory_factor)

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the serving certificate is for: the names of the Service."""
        service = f"{NAME}.{self.namespace}.svc"
        return (service, f"{service}.cluster.local", f"{NAME}.{self.namespace}", *self.extra_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CommonSettings):
    """All settings of the webhook."""

    template_grace_s: float = setting(3600.0, "a claim template stays this long after its last use, at least")
    api_request_limit_s: float = setting(60.0, "--request-timeout of kube-apiserver")
    clock_skew_s: float = setting(30.0, "largest difference of the clocks of webhook, controller and server")
    max_templates: int = setting(512, "claim templates (different GPU requests) in one namespace at a time")
    claim_makers: tuple[str, ...] = setting(
        ("system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager"),
        "users as which kube-controller-manager makes the claims of pods",
    )
    certificate_folder: str = setting(
        "", "folder with tls.crt and tls.key that somebody else renews (cert-manager); empty: our own"
    )
    client_authority: str = setting(
        "", "PEM file: reviews only from clients with a certificate of this authority; empty: from anybody"
    )
    client_names: tuple[str, ...] = setting(
        (), "common names of these clients (the API servers); empty: every certificate of the authority"
    )
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8443, "port to listen on")
    threads: int = setting(16, "reviews answered at the same time")
    allow_privileged_whole_gpu: bool = setting(False, "let privileged pods have whole GPUs")
    guarded_dirs: tuple[str, ...] = setting(
        (), "host folders of the agents outside their usual places, which no pod with a share may mount"
    )
    allow_without_gpus: bool = setting(True, "admit GPU pods while no node publishes a GPU")
    default_memory: int = setting(0, "units of memory per GPU for containers that state none; 0: all of it")
    default_cores: int = setting(0, "% of compute per GPU for containers that share and state none")
    default_gpu_num: int = setting(1, "GPUs for containers that state memory or cores only")

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        want_positive(self, "default_gpu_num")
        for path in self.guarded_dirs:
            if not path.startswith("/"):
                raise InvalidInput(field="guarded_dirs", value=path, fix="want absolute paths")
        if self.client_names and not self.client_authority:
            raise InvalidInput(
                field="client_names",
                value=",".join(self.client_names),
                fix="set client_authority, too: without it nobody is asked who he is",
            )
        for name, most in (("default_memory", 2**31 - 1), ("default_cores", 100)):
            if not 0 <= getattr(self, name) <= most:
                raise InvalidInput(field=name, value=getattr(self, name), fix=f"want 0 to {most}")
        want_positive(
            self, "template_grace_s", "api_request_limit_s", "clock_skew_s", "max_templates", "threads"
        )
        least_s = 2 * (self.api_request_limit_s + self.clock_skew_s)
        if self.template_grace_s < least_s:
            raise InvalidInput(
                field="template_grace_s",
                value=self.template_grace_s,
                fix=f"want at least {least_s:g}: twice api_request_limit_s plus clock_skew_s, else a template"
                " could be deleted under a pod that is being created",
            )

    @property
    def policy(self) -> Policy:
        """What `rewrite` needs of these."""
        return Policy(
            resources=self.resources,
            allow_privileged_whole_gpu=self.allow_privileged_whole_gpu,
            guarded_dirs=self.guarded_dirs,
            allow_without_gpus=self.allow_without_gpus,
            default_memory_mib=self.default_memory * self.memory_factor,
            default_cores_percent=self.default_cores,
            default_count=self.default_gpu_num,
            memory_factor=self.memory_factor,
        )


def want_positive(settings: CommonSettings, *fields: str) -> None:
    """Raise InvalidInput for a field that is not above zero (nor a number)."""
    for name in fields:
        if not getattr(settings, name) > 0:
            raise InvalidInput(field=name, value=getattr(settings, name), fix="want a positive number")


def read(
    kind: type[SettingsType], *, prog: str, argv: Sequence[str], environ: Mapping[str, str]
) -> SettingsType:
    """Settings of `kind` from flags (--template-grace-s) and variables (ALIQUOT_TEMPLATE_GRACE_S).

    Ends the process with a message for an unknown flag or a bad value, as argparse does.
    """
    parser = argparse.ArgumentParser(prog=prog)
    for each in fields(kind):  # type: ignore[arg-type] # every kind is a dataclass
        parser.add_argument(
            f"--{each.name.replace('_', '-')}",
            default=environ.get(f"{ENVIRONMENT_PREFIX}{each.name.upper()}"),
            help=f"{each.metadata['doc']} (default {each.default!r})".replace("%", "%%"),
        )
    given = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    defaults = {each.name: each.default for each in fields(kind)}  # type: ignore[arg-type] # as above
    try:
        settings = kind(**{name: _convert(name, value, defaults[name]) for name, value in given.items()})
    except InvalidInput as error:
        parser.error(str(error))
    logging.getLogger(__name__).debug("settings", extra={"settings": repr(settings)})
    return settings


def _convert(name: str, value: str, default: object) -> object:
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise InvalidInput(field=name, value=value, fix="want true or false")
        return value.lower() == "true"
    if isinstance(default, tuple):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(default, int | float):
        try:
            return type(default)(value)
        except ValueError as error:
            raise InvalidInput(field=name, value=value, fix="want a number") from error
    return value
