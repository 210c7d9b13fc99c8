# SPDX-License-Identifier: Apache-2.0
"""Make a container image without a builder: an OCI archive from files, folders and tar files.

The same content gives the same bytes. `ctr images import` and `Cluster.load_image` read the result.
"""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

Content = bytes | Path
"""What lies at a path of the image: bytes (an executable file), or a file or folder of this machine."""

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_Entries = dict[str, tuple[tarfile.TarInfo, Path | bytes | None]]


def layer(tree: Mapping[str, Content], *, links: Mapping[str, str] | None = None) -> bytes:
    """One layer as a tar file: content by its path in the image, symbolic links by theirs."""
    entries: _Entries = {}
    for path, content in tree.items():
        if isinstance(content, bytes):
            _add(entries, path, tarfile.REGTYPE, 0o755, body=content)
        else:
            for source in sorted([content, *content.rglob("*")]):
                inner = path if source == content else f"{path}/{source.relative_to(content)}"
                _add_file(entries, inner, source)
    for path, target in (links or {}).items():
        _add(entries, path, tarfile.SYMTYPE, 0o777, target=target)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(entries):
            info, body = entries[name]
            data = body.read_bytes() if isinstance(body, Path) else body
            archive.addfile(info, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def write_image(
    file: Path,
    *,
    name: str,
    layers: Sequence[bytes | Path],
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: str = "",
    architecture: str = "amd64",
) -> None:
    """Write the image `name`, such as "localhost/tool:1", of uncompressed tar layers (bytes or files)."""
    settings = {
        "Entrypoint": list(entrypoint),
        "Cmd": list(command),
        "Env": [f"{key}={value}" for key, value in {"PATH": _PATH, **(env or {})}.items()],
        "User": user,
    }
    digests = [_digest(content) for content in layers]
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {key: value for key, value in settings.items() if value},
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", content) for content in layers],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [{**_descriptor(_MANIFEST, manifest), "annotations": names}]}
    blobs = {_digest(blob): blob for blob in (config, manifest, *layers)}
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as scratch:
        with tarfile.open(fileobj=scratch, mode="w", format=tarfile.GNU_FORMAT) as archive:
            _put(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _put(archive, "index.json", _json(index))
            for digest, blob in blobs.items():
                _put(archive, f"blobs/{digest.replace(':', '/')}", blob)
        Path(scratch.name).chmod(0o644)
        Path(scratch.name).rename(file)


def _add(
    entries: _Entries,
    path: str,
    kind: bytes,
    mode: int,
    *,
    body: Path | bytes | None = None,
    target: str = "",
) -> None:
    name = path.strip("/")
    for parent in list(Path(name).parents)[:-1]:
        if str(parent) not in entries:
            _add(entries, str(parent), tarfile.DIRTYPE, 0o755)
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, target
    if body is not None:
        info.size = len(body) if isinstance(body, bytes) else body.stat().st_size
    entries[name] = (info, body)


def _add_file(entries: _Entries, path: str, source: Path) -> None:
    if source.is_symlink():
        _add(entries, path, tarfile.SYMTYPE, 0o777, target=str(source.readlink()))
    elif source.is_dir():
        _add(entries, path, tarfile.DIRTYPE, source.stat().st_mode & 0o7777)
    else:
        _add(entries, path, tarfile.REGTYPE, source.stat().st_mode & 0o7777, body=source)


def _put(archive: tarfile.TarFile, name: str, blob: bytes | Path) -> None:
    info = tarfile.TarInfo(name)
    info.size = _size(blob)
    if isinstance(blob, bytes):
        archive.addfile(info, io.BytesIO(blob))
    else:
        with blob.open("rb") as stream:
            archive.addfile(info, stream)


def _descriptor(media_type: str, blob: bytes | Path) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": _size(blob)}


def _size(blob: bytes | Path) -> int:
    return len(blob) if isinstance(blob, bytes) else blob.stat().st_size


def _digest(blob: bytes | Path) -> str:
    stream: IO[bytes]
    with io.BytesIO(blob) if isinstance(blob, bytes) else blob.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
