# SPDX-License-Identifier: Apache-2.0
"""Builds Aliquot's container images from their Dockerfiles, and the tests' own, by an engine of our own.

No registry: the base is a minimal system of this machine's own distribution, made by mmdebstrap once and
kept in the cache; on it stands the builder, which has pip and the locked libraries at hand. Only what
changed is built again.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import docker
import pip
from docker.models.images import Image

from deploy.images import contents, sbom
from tests.cluster.oci import Content, layer
from tests.system import nextlayout
from tests.testkit import engine

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build"
IMAGES: Final = BUILD / "images"
ENGINE: Final = BUILD / "engine"
WEBHOOK: Final = "localhost/aliquot-webhook:dev"
AGENT: Final = "localhost/aliquot-agent:dev"
SIM: Final = "localhost/aliquot-sim:dev"
AGENT_NEXT: Final = "localhost/aliquot-agent:next"
"""The agent with another layout of quota and ledger: what an upgrade brings."""
BUILDER: Final = "localhost/aliquot-builder:dev"
"""What the images are built with here."""
CLIENT: Final = "localhost/aliquot-client:dev"
AGENT_NEXT_ARCHIVE: Final = IMAGES / "agent-next.tar"
ARCHIVES: Final = tuple(IMAGES / f"{name}.tar" for name in ("webhook", "agent", "sim", "client"))

_BASE: Final = "localhost/aliquot-base"
_BASE_PACKAGES: Final = "python3,ca-certificates,libstdc++6"
_NOT_IN_BASE: Final = ("man", "doc", "locale", "info")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLATFORMS: Final = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 26, 27, 28, 31, 34)))
_LOCKS: Final = tuple(ROOT / f"deploy/images/{part}.lock" for part in ("webhook", "agent"))


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    base = _base()
    with engine.running(ENGINE) as client:
        forge = _Forge(client, base)
        forge.build("webhook", tag=WEBHOOK)
        forge.build("agent", tag=AGENT)
        forge.build("simulated-gpu", tag=SIM, archive="sim")
        region = "aliquot_agent/region.py"
        forge.lay(
            {
                "/opt/aliquot/libaliquot.so": nextlayout.library(IMAGES),
                f"/opt/aliquot/site/{region}": nextlayout.text(f"node-agent/{region}").encode(),
            },
            on=AGENT,
            tag=AGENT_NEXT,
            archive="agent-next",
            settings=f'RUN ["python3", "-m", "compileall", "-q", "-f", "/opt/aliquot/site/{region}"]',
        )
        forge.lay(
            {
                "/usr/local/bin/fill": _client("fill"),
                "/usr/local/bin/fill.py": ROOT / "tests/system/clients/fill.py",
                "/usr/local/bin/elastic": _client("elastic"),
                "/usr/local/bin/hog": _client("hog"),
                "/usr/local/bin/hog-static": _static_client("hog"),
                **_musl_client("hog"),
                "/usr/local/bin/mount": Path("/bin/busybox"),  # static; a tenant brings what it likes
            },
            on=forge.base,
            tag=CLIENT,
            archive="client",
            settings='CMD ["fill"]',
        )
    return 0


class _Forge:
    """Makes images by an engine, and archives of them."""

    def __init__(self, client: docker.DockerClient, base: Path) -> None:
        self._client = client
        self.base = f"{_BASE}:{base.stem}"
        if not client.images.list(self.base):
            client.api.import_image_from_file(
                str(base), repository=_BASE, tag=base.stem, changes=[f"ENV PATH={_PATH}"]
            )
        self._builder = self._make_builder(_python_of(base))

    def build(self, name: str, *, tag: str, archive: str = "") -> None:
        """The image of deploy/images/`name`.Dockerfile."""
        arguments = {"BASE": self.base, "BUILDER": self._builder}
        image = self._build(
            tag=tag, path=str(ROOT), dockerfile=f"deploy/images/{name}.Dockerfile", buildargs=arguments
        )
        self._save(image, archive or name, bill=True)

    def lay(
        self, tree: Mapping[str, Content], *, on: str, tag: str, archive: str = "", settings: str = ""
    ) -> None:
        """An image that has `tree` over the image `on`; without an archive unless that is named."""
        recipe = f"FROM {on}\nCOPY tree /\n{settings}\n".encode()
        context = layer(
            {"/Dockerfile": recipe, **{f"/tree{path}": content for path, content in tree.items()}}
        )
        image = self._build(tag=tag, fileobj=context, custom_context=True)
        if archive:
            self._save(image, archive, bill=False)

    def _make_builder(self, python: str) -> str:
        """The base with pip, and with the locked libraries where pip looks for them, and nowhere else."""
        inputs = [
            *(lock.read_bytes() for lock in _LOCKS),
            repr((self.base, python, pip.__version__)).encode(),
        ]
        tag = f"{BUILDER}-{hashlib.sha256(b''.join(inputs)).hexdigest()[:12]}"
        if not self._client.images.list(tag):
            settings = "ENV PYTHONPATH=/opt/pip PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels"
            with tempfile.TemporaryDirectory(dir=IMAGES) as scratch:
                _download(python=python, into=Path(scratch))
                tree = {"/opt/pip/pip": Path(pip.__file__).parent, "/opt/wheels": Path(scratch)}
                self.lay(tree, on=self.base, tag=tag, settings=settings)
        self._client.images.get(tag).tag(*BUILDER.split(":"))
        return BUILDER

    def _build(self, *, tag: str, **recipe: object) -> Image:
        sys.stderr.write(f"images: {tag}\n")
        try:
            image, _ = self._client.images.build(
                tag=tag, network_mode="none", rm=True, forcerm=True, **recipe
            )
        except docker.errors.BuildError as error:
            sys.stderr.write("".join(str(line.get("stream", "")) for line in error.build_log))
            raise
        return image

    def _save(self, image: Image, name: str, *, bill: bool) -> None:
        """Writes build/images/`name`.tar and the bill of materials, unless it holds just this image."""
        archive, stamp = IMAGES / f"{name}.tar", IMAGES / f"{name}.key"
        if archive.exists() and stamp.exists() and stamp.read_text() == image.id:
            return
        stamp.unlink(missing_ok=True)
        partial = IMAGES / f"{name}.partial"
        with partial.open("wb") as out:
            for chunk in image.save(named=True):
                out.write(chunk)
        partial.rename(archive)
        if bill:
            held = contents.read(archive, wanted=sbom.WANTED)
            (IMAGES / f"{name}.cdx.json").write_text(sbom.text(sbom.document(held, name=f"aliquot-{name}")))
            sys.stdout.write(f"\n{image.tags[0]}\n{contents.table(held)}\n")
        stamp.write_text(image.id)


def _download(*, python: str, into: Path) -> None:
    """The wheels that the locks name, for another Python than ours."""
    machine = platform.machine()
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    locks = [word for lock in _LOCKS for word in ("--requirement", str(lock))]
    where = ("--python-version", python, *platforms, "--dest", str(into))
    _pip("download", "--no-deps", "--only-binary=:all:", "--require-hashes", *locks, *where)


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
