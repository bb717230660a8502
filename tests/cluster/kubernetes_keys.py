"""Certificates and kubeconfigs of a cluster: who may speak with whom."""

import base64
import json
import os
import subprocess

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Keys:
    """An authority that signs, and what it has signed.

    Args:
        place: A directory for the files.
    """

    def __init__(self, place):
        self.place = place
        self.ca = place / "ca.crt"

    def begin(self):
        """Have a key of the authority's, and one that signs the tokens of programs in pods."""
        self.place.mkdir()
        named = ("-subj", "/CN=phalanx-tests", "-days", "30")
        self._openssl("req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", *named)
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "tokens.key")
        self._openssl("ec", "-in", "tokens.key", "-pubout", "-out", "tokens.pub")

    def certificate(self, name, subject, extension="extendedKeyUsage=clientAuth"):
        """Sign one; gives the files of the certificate and of its key."""
        self._openssl(
            *("req", "-new", *_NEW_KEY, "-subj", subject),
            *("-keyout", f"{name}.key", "-out", f"{name}.request"),
        )
        (self.place / f"{name}.extension").write_text(extension)
        self._openssl(
            *("x509", "-req", "-in", f"{name}.request", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-set_serial", f"0x{os.urandom(8).hex()}", "-days", "30"),
            *("-extfile", f"{name}.extension", "-out", f"{name}.crt"),
        )
        return self.place / f"{name}.crt", self.place / f"{name}.key"

    def kubeconfig(self, file, server, name, subject, namespace="default"):
        """Write one of a user; gives the file."""
        certificate, key = map(_base64, self.certificate(name, subject))
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca)}
        user = {"client-certificate-data": certificate, "client-key-data": key}
        context = {"cluster": "tests", "user": name, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "tests", "context": context}],
            "current-context": "tests",
        }
        file.write_text(json.dumps(config, indent=1))
        return file

    def _openssl(self, *arguments):
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.place, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"openssl {arguments[0]}: {done.stderr}")


def _base64(file):
    return base64.b64encode(file.read_bytes()).decode()
