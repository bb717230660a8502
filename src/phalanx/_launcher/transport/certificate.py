"""A certificate for one port, made by the `openssl` command; hosts need only Python's own TLS."""

from __future__ import annotations

import os
import ssl
import subprocess

_MAKING = 10.0
"""Seconds for the command, which takes hundredths of one."""
_COMMAND = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
    *("-nodes", "-subj", "/CN=phalanx", "-days", "2", "-keyout", "-", "-out", "-"),
)
_BEGIN = "-----BEGIN CERTIFICATE-----"


def make_certificate() -> tuple[ssl.SSLContext, str]:
    """What a server proves itself with, and the certificate that others know it by.

    The key is in this process's memory alone. Raises `OSError`.
    """
    try:
        done = subprocess.run(
            _COMMAND, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MAKING, check=True
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"openssl cannot make a certificate: {error}") from error
    number = os.memfd_create("phalanx-certificate")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(done.stdout)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
    text = done.stdout.decode("ascii", "replace")
    return context, text[text.index(_BEGIN) :]
