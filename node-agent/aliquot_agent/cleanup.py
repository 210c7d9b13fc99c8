# SPDX-License-Identifier: Apache-2.0
"""`aliquot-agent clean-node`: removes what agents left on a node, once Aliquot is uninstalled."""

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aliquot_api import names


def clean(*, plugin_dir: Path, registry_dir: Path, paths: Sequence[Path]) -> tuple[str, ...]:
    """Removes our sockets, the files of `paths`, and all that is in its folders and in `plugin_dir`.

    The folders themselves stay, empty: they are mounts of this container. A claim that is still prepared
    keeps everything: its pods run with these files, and a later agent finds its way by them. Returns those.
    """
    prepared = tuple(sorted(path.stem for path in (plugin_dir / "claims").glob("*.json")))
    if prepared:
        return prepared
    for socket in registry_dir.glob(f"{names.DRIVER}*"):
        socket.unlink(missing_ok=True)
    for path in (plugin_dir, *paths):
        for found in [*path.iterdir()] if _is_folder(path) else [path]:
            if _is_folder(found):
                shutil.rmtree(found)
            else:
                found.unlink(missing_ok=True)
    return ()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def main(argv: Sequence[str]) -> int:
    """Cleans, then waits to be ended if told so; the exit status."""
    parser = argparse.ArgumentParser(prog="aliquot-agent clean-node", description=__doc__)
    parser.add_argument("--plugin-dir", type=Path, default=Path(names.PLUGIN_DIR))
    parser.add_argument("--registry-dir", type=Path, default=Path(names.PLUGIN_REGISTRY_DIR))
    parser.add_argument("--wait", action="store_true", help="do not clean, wait for SIGTERM")
    parser.add_argument("paths", type=Path, nargs="*", help="more to remove")
    given = parser.parse_args(argv)
    if given.wait:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.pause()
    kept = clean(plugin_dir=given.plugin_dir, registry_dir=given.registry_dir, paths=given.paths)
    if kept:
        sys.stderr.write(f"aliquot-agent: claims are prepared, everything stays: {', '.join(kept)}\n")
    return 0
