"""Real disks that get full, read-only, or lose their files."""

import contextlib
import os
import shutil
import subprocess
import threading


class Disk:
    """A small file system of its own. Needs root."""

    def __init__(self, path, size="1m"):
        self.path = path
        path.mkdir(exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "disk", path], check=True
        )
        self._covered = False

    def __truediv__(self, name):
        return self.path / name

    def fill(self):
        """Not a byte more fits."""
        with open(self.path / "fill", "wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue

    @contextlib.contextmanager
    def kept_full(self):
        """The same for a while, though others give room back, as those do who turn their logs over."""
        stopped = threading.Event()

        def keep():
            with open(self.path / "fill", "ab", buffering=0) as file:
                while not stopped.wait(0.005):
                    with contextlib.suppress(OSError):
                        while file.write(b"x" * 512):
                            pass

        self.fill()
        keeping = threading.Thread(target=keep)
        keeping.start()
        try:
            yield
        finally:
            stopped.set()
            keeping.join()

    def make_read_only(self):
        """For whatever is opened from now on: files that are open for writing stay so."""
        subprocess.run(["mount", "--bind", self.path, self.path], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", self.path], check=True)
        self._covered = True

    def remove_all(self):
        """Everything on it is gone."""
        for entry in os.listdir(self.path):
            place = self.path / entry
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    def harm(self, trouble):
        """One of the three."""
        {"full": self.fill, "read-only": self.make_read_only, "gone": self.remove_all}[trouble]()

    def repair(self):
        """There is room, and it can be written."""
        if self._covered:
            subprocess.run(["umount", self.path], check=True)
            self._covered = False
        (self.path / "fill").unlink(missing_ok=True)

    def close(self):
        """Whatever still uses it."""
        self.repair()
        subprocess.run(["umount", "-l", self.path], check=True)
