"""What is said on stderr of work that takes long; of quick work nothing."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

from phalanx._core.sanitize import sanitize_line

_QUIET = 1.0
"""Seconds before anything is said."""
_PAUSE = 10.0
"""Seconds between two words about how far it is."""
_WIDTH = 200


class ImageProgress:
    """Says what is done now, and every ten seconds how far it is."""

    def __init__(self, title: str) -> None:
        """`title` is the first line."""
        self._lines = [title]
        self._how_far = ""
        self._said = ""
        self._is_shown = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="phalanx-progress", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing more is said."""
        self._ended.set()
        self._thread.join()

    def step(self, text: str) -> None:
        """Something new is done."""
        with self._lock:
            self._how_far = self._said = ""
            self._lines.append(text)
            if self._is_shown:
                self._show()

    def how_far(self, text: str) -> None:
        """How far what is done now has come."""
        self._how_far = text

    def _watch(self) -> None:
        pause = _QUIET
        while not self._ended.wait(pause):
            pause = _PAUSE
            with self._lock:
                if self._is_shown and self._how_far != self._said:
                    self._said = self._how_far
                    self._lines.append(self._how_far)
                self._is_shown = True
                self._show()

    def _show(self) -> None:
        for line in self._lines:
            print(f"phalanx: {sanitize_line(line, _WIDTH)}", file=sys.stderr, flush=True)
        self._lines.clear()
