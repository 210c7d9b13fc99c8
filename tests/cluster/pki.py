# SPDX-License-Identifier: Apache-2.0
"""The cluster's certificates and kubeconfigs, made with openssl."""

import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from .system import run

_CONFIG = "[req]\ndistinguished_name = name\nprompt = no\n[name]\n"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody with a certificate: a server if it has addresses, and a client in any case."""

    file: str
    user: str
    group: str = ""
    names: Sequence[str] = ()
    addresses: Sequence[str] = ()


def create(folder: Path, identities: Sequence[Identity]) -> None:
    """Make the authority `ca`, the service account key `sa` and every identity's FILE.crt and FILE.key."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "openssl.cnf").write_text(_CONFIG)
    curve = ("-pkeyopt", "ec_paramgen_curve:prime256v1")
    run("openssl", "genpkey", "-algorithm", "EC", *curve, "-out", folder / "sa.key")
    run("openssl", "pkey", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")
    authority = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
    _request(folder, "ca", "/CN=testbed", (*authority, "subjectKeyIdentifier=hash"))
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_sign, folder, identity) for identity in identities]:
            done.result()


def _sign(folder: Path, who: Identity) -> None:
    subject = f"/O={who.group}/CN={who.user}" if who.group else f"/CN={who.user}"
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=clientAuth,serverAuth",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",  # strict clients (Python 3.13) insist on it
    ]
    alternatives = [*(f"DNS:{name}" for name in who.names), *(f"IP:{address}" for address in who.addresses)]
    if alternatives:
        extensions.append(f"subjectAltName={','.join(alternatives)}")
    _request(
        folder, who.file, subject, extensions, "-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key")
    )


def _request(folder: Path, file: str, subject: str, extensions: Sequence[str], *more: str) -> None:
    added = [word for extension in extensions for word in ("-addext", extension)]
    config = ("-config", folder / "openssl.cnf", "-subj", subject, "-days", "3650")
    out = ("-keyout", folder / f"{file}.key", "-out", folder / f"{file}.crt")
    run("openssl", "req", "-x509", *config, *_KEY, *out, *added, *more)


def kubeconfig(folder: Path, file: str, server: str) -> str:
    """The kubeconfig of one identity, complete in itself."""

    def data(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data(f"{file}.crt"), "client-key-data": data(f"{file}.key")}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": file, "user": user}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": file}}],
            "current-context": "testbed",
        }
    )
