"""The gateway's end of TLS, where a page asks an https:// origin outside of its world: the gateway reads what it asks.

The certificate is made when it is first needed, is kept in memory only, and proves nothing: the one browser that it is
shown to is told to take any, and reaches nobody but the gateway. Who the host is, is the gateway's to check.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from statefork.engine.errors import MissingDependency

_DAYS = 3650


def server_context() -> ssl.SSLContext:
    """Blocks for some milliseconds. Raises MissingDependency."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingDependency(
            "external origins with https:// need the package cryptography",
            hint="pip install 'statefork[https]'",
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "statefork gateway")])
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + datetime.timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # Python reads keys from files only
        file = Path(folder) / "pair.pem"
        file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(file)
    return context
