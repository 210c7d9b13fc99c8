# SPDX-License-Identifier: Apache-2.0
"""Builds Aliquot's container images without a registry or a container engine.

The base is a minimal system of this machine's own distribution, made by mmdebstrap once and kept in the
cache; on it come the wheel, the locked dependencies of one extra, and the C parts. Only what changed is
built again.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.oci import Content, layer, write_image

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build"
IMAGES: Final = BUILD / "images"
WEBHOOK: Final = "localhost/aliquot-webhook:dev"
AGENT: Final = "localhost/aliquot-agent:dev"
SIM: Final = "localhost/aliquot-sim:dev"
AGENT_NEXT: Final = "localhost/aliquot-agent:next"
"""The agent with another build of the library: what an upgrade brings."""
CLIENT: Final = "localhost/aliquot-client:dev"
AGENT_NEXT_ARCHIVE: Final = IMAGES / "agent-next.tar"
ARCHIVES: Final = tuple(IMAGES / f"{name}.tar" for name in ("webhook", "agent", "sim", "client"))
NOBODY: Final = "65532:65532"
PYTHON_ENV: Final = {"PYTHONPATH": "/opt/aliquot/site", "PYTHONUNBUFFERED": "1"}

_BASE_PACKAGES: Final = "python3,ca-certificates,libstdc++6"
_NOT_IN_BASE: Final = ("man", "doc", "locale", "info")
_UNUSED: Final = ("bin", "kubernetes/aio", "aiohttp", "aiohttp_retry", "websocket/tests", "certifi/tests")
"""Parts of the libraries that nobody here imports, and that would be a third of the image."""
_PLATFORMS: Final = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 26, 27, 28, 31, 34)))


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    base = _base()
    python = _python_of(base)
    wheel = _wheel()
    shim, sim = BUILD / "shim", BUILD / "sim"
    _image(
        "webhook",
        name=WEBHOOK,
        base=base,
        tree={
            "/opt/aliquot/site": _site("webhook", wheel=wheel, python=python),
            "/usr/local/bin/aliquot-webhook": _script("aliquot_webhook"),
            "/usr/local/bin/aliquot-controller": _script("aliquot_controller"),
        },
        env=PYTHON_ENV,
        entrypoint=["aliquot-webhook"],
        user=NOBODY,
    )
    library = shim / "release" / platform.machine() / "libaliquot.so"
    agent: dict[str, Content] = {
        "/opt/aliquot/site": _site("agent", wheel=wheel, python=python),
        "/opt/aliquot/libaliquot.so": library,
        "/usr/local/bin/aliquot-agent": _script("aliquot_agent"),
    }
    _image("agent", name=AGENT, base=base, tree=agent, env=PYTHON_ENV, entrypoint=["aliquot-agent"])
    _image(
        "agent-next",
        name=AGENT_NEXT,
        base=base,
        tree=agent,
        over={"/opt/aliquot/libaliquot.so": library.read_bytes() + b"next"},
        env=PYTHON_ENV,
        entrypoint=["aliquot-agent"],
    )
    _image(
        "sim",
        name=SIM,
        base=base,
        tree={
            **{
                f"/opt/aliquot-sim/{file}": sim / file
                for file in (
                    *("libcuda.so.1", "libnvidia-ml.so.1"),
                    *("aliquot-sim", "aliquot-smi", "nvidia-cuda-mps-control"),
                )
            },
            "/opt/aliquot-sim/node": ROOT / "deploy/images/simulated-gpu.sh",
        },
        entrypoint=["/opt/aliquot-sim/node"],
    )
    _image(
        "client",
        name=CLIENT,
        base=base,
        tree={
            "/usr/local/bin/fill": _client("fill"),
            "/usr/local/bin/fill.py": ROOT / "tests/system/clients/fill.py",
            "/usr/local/bin/elastic": _client("elastic"),
            "/usr/local/bin/hog": _client("hog"),
            "/usr/local/bin/hog-static": _static_client("hog"),
            **_musl_client("hog"),
            "/usr/local/bin/mount": Path("/bin/busybox"),  # static; a tenant brings what it likes
        },
        command=["fill"],
    )
    return 0


def _image(
    file: str,
    *,
    name: str,
    base: Path,
    tree: Mapping[str, Content],
    over: Mapping[str, Content] | None = None,
    env: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
    user: str = "",
) -> None:
    """Writes build/images/`file`.tar, unless it holds just this already; `over` is a layer of its own."""
    tops = [layer(each) for each in (tree, over) if each is not None]
    recipe = repr((name, env, entrypoint, command, user, base.name)).encode()
    key = hashlib.sha256(b"".join([recipe, *(hashlib.sha256(top).digest() for top in tops)])).hexdigest()
    archive, stamp = IMAGES / f"{file}.tar", IMAGES / f"{file}.key"
    if archive.exists() and stamp.exists() and stamp.read_text() == key:
        return
    stamp.unlink(missing_ok=True)
    write_image(
        archive, name=name, layers=[base, *tops], env=env, entrypoint=entrypoint, command=command, user=user
    )
    stamp.write_text(key)
    sys.stderr.write(
        f"images: {name}: {sum(map(len, tops)) >> 20} MiB on a base of {base.stat().st_size >> 20} MiB\n"
    )


def _base() -> Path:
    """A tar file of a minimal system with Python: this machine's distribution and release."""
    suite = _os_release()["VERSION_CODENAME"]
    recipe = hashlib.sha256(repr((_BASE_PACKAGES, _NOT_IN_BASE)).encode()).hexdigest()[:8]
    folder = Path(os.environ.get("ALIQUOT_CACHE", Path.home() / ".cache/aliquot")) / "images"
    target = folder / f"base-{suite}-{recipe}.tar"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(
            f"images: making a base of {suite} with {_BASE_PACKAGES}, once; this takes a minute or two\n"
        )
        without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _NOT_IN_BASE]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "base.tar"
            _run(
                "mmdebstrap",
                "--quiet",
                "--variant=essential",
                f"--include={_BASE_PACKAGES}",
                *without,
                suite,
                str(made),
            )
            made.rename(target)
    return target


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _python_of(base: Path) -> str:
    """Version of the base's python3, such as "3.11"."""
    with tarfile.open(base) as archive:
        return Path(archive.getmember("./usr/bin/python3").linkname).name.removeprefix("python")


def _wheel() -> Path:
    folder = BUILD / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("*.whl")
    return wheel


def _site(extra: str, *, wheel: Path, python: str) -> Path:
    """A folder with the wheel and the locked dependencies of `extra`, byte-compiled."""
    lock = ROOT / f"deploy/images/{extra}.lock"
    key = hashlib.sha256(lock.read_bytes() + repr((python, _UNUSED)).encode()).hexdigest()[:12]
    libraries = IMAGES / f"libraries-{extra}-{key}"
    platform = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    into = ("install", "--no-compile", "--python-version", python, "--only-binary=:all:", *platform)
    if not libraries.exists():
        with tempfile.TemporaryDirectory(dir=IMAGES) as scratch:
            _pip(*into, "--require-hashes", "--requirement", str(lock), "--target", f"{scratch}/site")
            for unused in _UNUSED:
                shutil.rmtree(f"{scratch}/site/{unused}", ignore_errors=True)
            Path(f"{scratch}/site").rename(libraries)
    site = IMAGES / f"site-{extra}"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(libraries, site, symlinks=True)
    _pip(*into, "--no-deps", "--upgrade", "--target", str(site), str(wheel))
    shutil.rmtree(site / "bin", ignore_errors=True)
    compiler = shutil.which(f"python{python}")
    if compiler is not None:
        # The root file system is read-only and files in images carry no time, so: by hash, unchecked.
        _run(
            compiler, "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash", str(site)
        )
    return site


def _script(module: str) -> bytes:
    """The console script that pip would make, for the image's own Python."""
    return (
        f"#!/usr/bin/python3\nimport sys\n\nfrom {module}.__main__ import main\n\nsys.exit(main())\n".encode()
    )


def _client(name: str) -> Path:
    """A tenant in C, linked against the simulated driver by its SONAME, as against a real one."""
    return _compile("gcc", name, name, BUILD / "sim/libcuda.so.1")


def _static_client(name: str) -> Path:
    """The same as a static program, with the driver in it: no preload reaches that."""
    driver = f"-Wl,--whole-archive,{BUILD / 'sim/libcuda.a'},--no-whole-archive"
    return _compile("gcc", name, f"{name}-static", "-static", "-pthread", driver)


def _musl_client(name: str) -> dict[str, Content]:
    """The same as in a musl distribution, with a driver built for it: musl knows no preload list."""
    kernel = ("/usr/include", f"/usr/include/{platform.machine()}-linux-gnu")
    compiler = " ".join(["musl-gcc", *(f"-idirafter {folder}" for folder in kernel)])
    build, library = BUILD / "images/musl", "libcuda.so.1"
    _run(
        "make", "-s", "-C", str(ROOT / "shim/sim"), f"CC={compiler}", f"BUILD={build}",
        f"PYTHON={sys.executable}", f"{build}/{library}",
    )  # fmt: skip
    program = _compile("musl-gcc", name, f"{name}-musl", "-Wl,-rpath,/opt/musl", build / library)
    loader = Path(f"/lib/ld-musl-{platform.machine()}.so.1")
    return {
        f"/usr/local/bin/{program.name}": program,
        f"/opt/musl/{library}": build / library,
        f"/usr{loader}": loader.resolve(),  # /lib is a link to /usr/lib in the base
    }


def _compile(compiler: str, source: str, program: str, *more: str | Path) -> Path:
    """build/images/`program` from tests/system/clients/`source`.c."""
    target = BUILD / "images" / program
    [include] = {
        path.parent for path in ROOT.glob(".venv/lib/python3*/site-packages/nvidia/*/include/cuda.h")
    }
    code = str(ROOT / f"tests/system/clients/{source}.c")
    options = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{include}")
    _run(compiler, *options, "-o", str(target), code, *map(str, more))
    return target


def _pip(*arguments: str) -> None:
    _run(
        sys.executable, "-m", "pip", *arguments[:1], "--quiet", "--disable-pip-version-check", *arguments[1:]
    )


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=900)


if __name__ == "__main__":
    sys.exit(main())
