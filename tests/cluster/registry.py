"""A real registry of images, beside an engine of `tests.cluster.docker`."""

import json
import os
import shutil

from tests.cluster.machine import PATH
from tests.conftest import wait_until

USER, PASSWORD = "someone", "geheim"
_PASSWORD_FILE = f"{USER}:$2b$05$abcdefghijklmnopqrstuuVWu8RjbNovPZWAMRdd7iqaaG0mI53Uu\n"


def why_not():
    """The reason why it cannot be had here, or None."""
    if not shutil.which("docker-registry", path=PATH):
        return "docker-registry not installed; 'make test SYSTEM=1' does it"
    return None


class Registry:
    """Running from the beginning, in the engine's network.

    Args:
        engine: The engine.
        place: A directory for its files.
        private: Only `USER` may come in, with `PASSWORD`.
        mirrors: Another one, beside another engine: both have the same address there, and the same
            images.
    """

    def __init__(self, engine, place, *, private=False, mirrors=None):
        self.engine = engine
        place.mkdir()
        self._log = place / "log"
        self._pid = place / "pid"
        self._images = place / "data" if mirrors is None else mirrors._images
        # The engine's network is one of its own: few others are there.
        self.address = f"127.0.0.1:{20000 + int.from_bytes(os.urandom(2)) % 20000}"
        if mirrors is not None:
            self.address = mirrors.address
        config = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self._images)}},
            "http": {"addr": self.address},
        }
        if private:
            (place / "passwords").write_text(_PASSWORD_FILE)
            config["auth"] = {"htpasswd": {"realm": "tests", "path": str(place / "passwords")}}
        (place / "config.yml").write_text(json.dumps(config))
        with open(self._log, "wb") as log:
            self._process = engine.start_inside(
                *("sh", "-c", 'echo $$ > "$0"; exec "$@"', place / "pid"),
                *("docker-registry", "serve", place / "config.yml"),
                stdout=log,
                stderr=log,
            )
        wait_until(self._listens, 30, self._log.read_text())

    def _listens(self):
        host, port = self.address.split(":")
        program = f"import socket; socket.create_connection(('{host}', {port})).close()"
        try:
            self.engine.inside("python3", "-IS", "-c", program)
        except RuntimeError:
            return False
        return True

    def requests(self, method):
        """How many requests of a kind it had."""
        return self._log.read_text(errors="replace").count(f"http.request.method={method}")

    def close(self):
        """End it."""
        if self._process.poll() is None:
            self.engine.inside("kill", self._pid.read_text().strip())
            self._process.wait()
