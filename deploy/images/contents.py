# SPDX-License-Identifier: Apache-2.0
"""What is in an image that `docker save` wrote, and what takes the room."""

import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

OURS: Final = PurePosixPath("/opt/aliquot/site")
_LARGEST: Final = 12


@dataclass(frozen=True, slots=True)
class Image:
    """An image as its archive has it."""

    config: Mapping[str, Any]
    """What the image says of itself: user, command, environment."""
    layers: tuple[Mapping[str, int], ...]
    """Size in bytes of each file, by its path; the base first."""
    texts: Mapping[str, bytes]
    """Content of the files that were asked for."""

    @property
    def files(self) -> Mapping[str, int]:
        """All files; what a later layer replaces counts once."""
        return {path: size for layer in self.layers for path, size in layer.items()}


def read(archive: Path, *, wanted: tuple[str, ...] = ()) -> Image:
    """Reads an archive; `wanted` are patterns of paths whose content is read too."""
    with tarfile.open(archive) as outer:
        [manifest] = json.load(_member(outer, "manifest.json"))
        config = json.load(_member(outer, manifest["Config"]))["config"]
        layers: list[Mapping[str, int]] = []
        texts: dict[str, bytes] = {}
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=_member(outer, name)) as layer:
                layers.append(dict(_files(layer, wanted, texts)))
    return Image(config=config, layers=tuple(layers), texts=texts)


def room(image: Image, *, base_layers: int = 1) -> list[tuple[str, int]]:
    """What takes the room: base, each package of ours, other files; the largest first."""
    added: Counter[str] = Counter()
    for path, size in (each for layer in image.layers[base_layers:] for each in layer.items()):
        inside = PurePosixPath(path)
        added[inside.parts[len(OURS.parts)] if OURS in inside.parents else path] += size
    return added.most_common()


def table(image: Image, *, base_layers: int = 1) -> str:
    """The room as a table for people, in Markdown."""
    rows = room(image, base_layers=base_layers)
    base = sum(size for layer in image.layers[:base_layers] for size in layer.values())
    rest = rows[_LARGEST:]
    lines = [
        *rows[:_LARGEST],
        (f"{len(rest)} others", sum(size for _, size in rest)),
        ("**beyond the base**", sum(size for _, size in rows)),
        ("base", base),
    ]
    return "\n".join(["| | MB |", "|---|---|", *(f"| {what} | {size / 1e6:.1f} |" for what, size in lines)])


def _files(
    layer: tarfile.TarFile, wanted: tuple[str, ...], texts: dict[str, bytes]
) -> Iterator[tuple[str, int]]:
    for entry in layer:
        path = f"/{entry.name.removeprefix('./')}"
        if entry.isdir():
            continue
        yield path, entry.size
        if entry.isfile() and any(PurePosixPath(path).match(pattern) for pattern in wanted):
            texts[path] = _member(layer, entry).read()


def _member(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(member)
    if stream is None:
        raise LookupError(f"{member} is no file in {archive.name!r}")
    return stream
