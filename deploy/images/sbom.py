# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of an image, as CycloneDX: `python -m deploy.images.sbom ARCHIVE`, of `docker save`.

It names what the image itself says that it holds: Python distributions, our library for tenants, the
packages of the system below, and Python where that is none of them. The same image gives the same bytes.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from pathlib import Path, PurePosixPath
from typing import Final, TypedDict

from deploy.images.contents import OURS, Image, read

METADATA: Final = f"{OURS}/*.dist-info/METADATA"
LIBRARY: Final = f"{OURS}/aliquot_agent/lib/*/*/libaliquot.so"
PACKAGES: Final = ("/var/lib/dpkg/status", "/var/lib/dpkg/status.d/*")
RELEASE: Final = "/usr/lib/os-release"
WANTED: Final = (METADATA, LIBRARY, RELEASE, *PACKAGES)


class Hash(TypedDict):
    """Of a file."""

    alg: str
    content: str


class License(TypedDict):
    """An SPDX expression."""

    expression: str


class _Named(TypedDict):
    type: str
    name: str
    version: str


class Component(_Named, total=False):
    """One thing that the image holds."""

    purl: str
    licenses: list[License]
    hashes: list[Hash]


class Document(TypedDict):
    """A bill of materials."""

    bomFormat: str
    specVersion: str
    version: int
    metadata: dict[str, Component]
    components: list[Component]


def document(image: Image, *, name: str) -> Document:
    """The bill of `image`, which must have been read with WANTED."""
    components = [*_python(image), *_distributions(image), *_libraries(image), *_packages(image)]
    version = next((each["version"] for each in components if each["name"] == "aliquot"), "0")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": components,
    }


def text(bill: Document) -> str:
    """As a file."""
    return f"{json.dumps(bill, indent=1)}\n"


def _distributions(image: Image) -> Iterator[Component]:
    for _, content in _matching(image, METADATA):
        about = BytesParser().parsebytes(content, headersonly=True)
        name, version = str(about["Name"]), str(about["Version"])
        purl = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
        found: Component = {"type": "library", "name": name, "version": version, "purl": purl}
        if about["License-Expression"]:
            found["licenses"] = [{"expression": str(about["License-Expression"])}]
        yield found


def _libraries(image: Image) -> Iterator[Component]:
    for path, content in _matching(image, LIBRARY):
        digest = hashlib.sha256(content).hexdigest()
        yield {
            "type": "library",
            "name": path.name,
            "version": path.parent.name,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }


def _packages(image: Image) -> Iterator[Component]:
    [release] = [content for _, content in _matching(image, RELEASE)] or [b""]
    words = dict(line.split("=", 1) for line in release.decode().splitlines() if "=" in line)
    system, suite = (words.get(key, "").strip('"') for key in ("ID", "VERSION_CODENAME"))
    for pattern in PACKAGES:
        for _, content in _matching(image, pattern):
            for paragraph in content.decode().strip().split("\n\n"):
                about = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", paragraph, re.MULTILINE))
                if "Package" in about and "installed" in about.get("Status", "installed").split():
                    name, version = about["Package"], about["Version"]
                    purl = f"pkg:deb/{system}/{name}@{version.replace(':', '%3A').replace('+', '%2B')}"
                    purl += f"?arch={about['Architecture']}&distro={suite}"
                    yield {"type": "library", "name": name, "version": version, "purl": purl}


def _python(image: Image) -> Iterator[Component]:
    """A Python that is no package of the distribution: Docker's own images say which one it is."""
    environment: Mapping[str, str] = dict(each.split("=", 1) for each in image.config.get("Env") or ())
    if "PYTHON_VERSION" in environment:
        version = environment["PYTHON_VERSION"]
        yield {
            "type": "application",
            "name": "python",
            "version": version,
            "purl": f"pkg:generic/python@{version}",
        }


def _matching(image: Image, pattern: str) -> list[tuple[PurePosixPath, bytes]]:
    found = ((PurePosixPath(path), content) for path, content in image.texts.items())
    return sorted(each for each in found if each[0].match(pattern))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(text(document(read(Path(argument), wanted=WANTED), name=Path(argument).stem)))
