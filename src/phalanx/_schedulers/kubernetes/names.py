"""Names and labels that every API server takes, whatever an app is called. Pure.

Names are DNS labels: at most 63 of a–z, 0–9 and `-`, a letter first. What users wrote is kept in
the app's record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from phalanx._schedulers.authoring import make_app_id

APP = "phalanx/app"
SESSION = "phalanx/session"
USER = "phalanx/user"
ROLE = "phalanx/role"
REPLICA = "phalanx/replica"
ATTEMPT = "phalanx/attempt"
RECORD = "phalanx/record"
"""An annotation of the app's Service: what the app is."""
CANCELLED = "phalanx/cancelled"
"""An annotation of the app's Service: when it was cancelled."""
STOPPED = "phalanx/stopped"
"""An annotation of a pod: when it was stopped."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation in which a pod of an Indexed Job finds its number."""

_APP_WORD = 20
_ROLE_WORD = 15
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class AppName:
    """Where an app is: an id has all of it, so that any process finds the app."""

    name: str
    """Of its objects."""
    namespace: str
    context: str | None = None
    """The context that was asked for; None: the current one."""

    def __str__(self) -> str:
        """As an id; a context is quoted, since it may have any character."""
        own = f"{self.namespace}:{self.name}"
        return own if self.context is None else f"{quote(self.context, safe='')}:{own}"

    @classmethod
    def parse(cls, app_id: str) -> AppName | None:
        """From an id; None for what cannot be one."""
        parts = app_id.split(":")
        if not 1 <= len(parts) <= 3 or not all(parts):
            return None
        if len(parts) == 3:
            return cls(parts[2], parts[1], unquote(parts[0]))
        return cls(parts[-1], parts[0] if len(parts) == 2 else "")


def make_name(name: str) -> str:
    """A new name for an app's objects: never the same twice."""
    token = make_app_id("").rpartition("-")[2]
    word = _word(name, _APP_WORD)
    return f"{word or 'app'}-{token}"


def role_words(names: Sequence[str]) -> dict[str, str]:
    """A word for each role; no two are the same."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for index, name in enumerate(names):
        word = _word(name, _ROLE_WORD) or "role"
        if word in taken:
            word = f"{word[: _ROLE_WORD - 4].rstrip('-')}-{index}"
        while word in taken:
            word += "x"
        taken.add(word)
        found[name] = word
    return found


def label(text: str) -> str:
    """A text as the value of a label: itself where it is one, otherwise its digest."""
    if _LABEL.fullmatch(text):
        return text
    return "h-" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def job_name(app: str, role_word: str, replica: int | None, attempt: int) -> str:
    """Of the Job of a role, or of one replica."""
    number = "" if replica is None else f"-{replica}"
    return f"{app}-{role_word}{number}" + (f"-try{attempt + 1}" if attempt else "")


def _word(text: str, longest: int) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")
    return plain[:longest].strip("-")
