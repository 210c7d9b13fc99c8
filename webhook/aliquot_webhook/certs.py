# SPDX-License-Identifier: Apache-2.0
"""Certificates of our own making: an authority, and a serving certificate signed by it.

Renewal never needs a moment at which everybody switches. The serving certificate is renewed under the same
authority. The authority is renewed over the same key and name, so that the old and the new authority
certificate each verify the old and the new serving certificate.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_LIFE: Final = timedelta(days=3650)
_SERVING_LIFE: Final = timedelta(days=90)
_RENEW_AT: Final = 1 / 3
"""Renew when less than this part of the life is left."""
_SKEW: Final = timedelta(hours=1)
"""Certificates are valid from before they are made: clocks differ."""
_OVERLAP: Final = timedelta(hours=1)
_MOST_OTHERS: Final = 2
_AUTHORITY_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aliquot webhook authority")])


@dataclass(frozen=True, slots=True, repr=False)
class Bundle:
    """Everything the Secret holds, in PEM. Not printed: it has private keys."""

    authority: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, repr=False)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def renewed(current: Bundle | None, *, hosts: Sequence[str], now: datetime) -> Bundle | None:
    """A bundle to use instead of `current`, or None if that is good for `hosts` and a while yet.

    More hosts than wanted are no fault, and stay where some are missing: whoever shares the Secret may have
    been told of other ones, and the two must not take turns for ever. At its regular renewal they are left
    out.
    """
    authority, serving = _authority(current), _serving(current)
    authority_is_due = authority is None or _is_due(authority.certificate, now)
    if authority is None or authority_is_due:
        authority = _make_authority(now, key=authority.key if authority else None)
    present = _hosts_of(serving.certificate) if serving else []
    if (
        serving is None
        or _is_due(serving.certificate, now)
        or not _is_signed_by(serving.certificate, authority.certificate)
    ):
        serving = _issue(authority, hosts=hosts, now=now)
    elif not set(hosts) <= set(present):
        serving = _issue(authority, hosts=list(dict.fromkeys([*hosts, *present])), now=now)
    elif not authority_is_due:
        return None
    return Bundle(
        authority=_certificate_pem(authority.certificate),
        authority_key=_key_pem(authority.key),
        certificate=_certificate_pem(serving.certificate),
        key=_key_pem(serving.key),
    )


def expiry(bundle: Bundle) -> datetime:
    """When the serving certificate ends."""
    return x509.load_pem_x509_certificate(bundle.certificate).not_valid_after_utc


def trusted(authority_pem: bytes, present_pem: bytes, *, now: datetime) -> bytes:
    """What the API server shall trust: `authority_pem`, and for a while what it trusts already.

    A replica may serve a certificate of the old one until it has read the new one.
    """
    try:
        authority = x509.load_pem_x509_certificate(authority_pem)
        present = x509.load_pem_x509_certificates(present_pem)
    except ValueError:
        return authority_pem
    if now - authority.not_valid_before_utc > _SKEW + _OVERLAP:
        return authority_pem
    others = [each for each in present if each != authority and each.not_valid_after_utc > now]
    return authority_pem + b"".join(_certificate_pem(each) for each in others[:_MOST_OTHERS])


def _authority(bundle: Bundle | None) -> _Pair | None:
    return _load(bundle.authority, bundle.authority_key) if bundle else None


def _serving(bundle: Bundle | None) -> _Pair | None:
    return _load(bundle.certificate, bundle.key) if bundle else None


def _load(certificate_pem: bytes, key_pem: bytes) -> _Pair | None:
    """A certificate with its own key; None for anything else, which is then made anew."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return _Pair(certificate=certificate, key=key)


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < begin or end - now < (end - begin) * _RENEW_AT


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _make_authority(now: datetime, *, key: ec.EllipticCurvePrivateKey | None) -> _Pair:
    key = key or ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(_AUTHORITY_NAME, key, now)
        .not_valid_after(now + _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Pair(certificate=certificate, key=key)


def _issue(authority: _Pair, *, hosts: Sequence[str], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _builder(subject, key, now)
        .not_valid_after(min(now + _SERVING_LIFE, authority.certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return _Pair(certificate=certificate, key=key)


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
