"""An app's id, tags that AWS takes whatever an app is called, the ids of children. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

SESSION = "phalanx/session"
USER = "phalanx/user"
NAME = "phalanx/name"
KIND = "phalanx/kind"
ROLE = "phalanx/role-"
"""With a number behind it: how many replicas a role has, and its name."""
DELETED = "phalanx/deleted"
"""Jobs cannot be deleted; this hides one, until the service forgets it."""

_LONGEST = 200
_UNFIT = re.compile(r"[^a-zA-Z0-9 +\-=._:/@]")


class JobKind(Enum):
    """What an app is to the service."""

    CONTAINER = "container"
    NODES = "nodes"
    """A multi-node parallel job: the main node starts, then the others, each on an instance."""
    ARRAY = "array"
    """An array job: each replica starts when there is room, and knows nothing of the others."""

    def child(self, job_id: str, number: int) -> str:
        """The id of the job that is a replica, by its number in the app."""
        match self:
            case JobKind.CONTAINER:
                return job_id
            case JobKind.NODES:
                return f"{job_id}#{number}"
            case JobKind.ARRAY:
                return f"{job_id}:{number}"


@dataclass(frozen=True)
class BatchAppId:
    """An app's id: it says where the app is, so that any process finds it."""

    queue: str
    name: str
    """Of the job: never the same twice."""
    region: str | None = None
    profile: str | None = None
    endpoint: str | None = None

    def __str__(self) -> str:
        """As an id; parts are quoted, since they may have any character."""
        parts = [self.queue, self.name, self.region, self.profile, self.endpoint]
        return ":".join(quote(part or "", safe="") for part in parts).rstrip(":")

    @classmethod
    def parse(cls, app_id: str) -> BatchAppId | None:
        """From an id; None for what cannot be one."""
        parts = [unquote(part) for part in app_id.split(":")]
        if not 2 <= len(parts) <= 5 or not parts[0] or not parts[1]:
            return None
        return cls(parts[0], parts[1], *(part or None for part in parts[2:]))


@dataclass(frozen=True)
class RoleTag:
    """What a job's tags say of a role."""

    name: str
    """As far as tags can have it."""
    replicas: int


@dataclass(frozen=True)
class AppTags:
    """What a job's tags say of its app."""

    name: str
    session: str
    user: str
    kind: JobKind
    roles: tuple[RoleTag, ...]

    def to_tags(self) -> dict[str, str]:
        """As tags of the job."""
        roles = {f"{ROLE}{i}": f"{r.replicas} {r.name}" for i, r in enumerate(self.roles)}
        return {
            NAME: tag_value(self.name),
            SESSION: tag_value(self.session),
            USER: tag_value(self.user),
            KIND: self.kind.value,
            **roles,
        }

    @classmethod
    def parse(cls, tags: Mapping[str, str]) -> AppTags | None:
        """From the tags of a job; None for one that is not ours."""
        roles: list[RoleTag] = []
        while found := re.fullmatch(r"(\d+) (.+)", tags.get(f"{ROLE}{len(roles)}", "")):
            roles.append(RoleTag(found[2], int(found[1])))
        kinds = {kind.value: kind for kind in JobKind}
        if not roles or tags.get(KIND) not in kinds or DELETED in tags:
            return None
        return cls(
            tags.get(NAME, ""),
            tags.get(SESSION, ""),
            tags.get(USER, ""),
            kinds[tags[KIND]],
            tuple(roles),
        )

    def first(self, role: int) -> int:
        """The number in the app of a role's first replica."""
        return sum(part.replicas for part in self.roles[:role])

    @property
    def num_replicas(self) -> int:
        """Of all roles."""
        return self.first(len(self.roles))


def tag_value(text: str) -> str:
    """A text as the value of a tag: itself where it is one."""
    return _UNFIT.sub("_", text)[:_LONGEST].strip() or "_"


def role_tags(roles: Sequence[tuple[str, int]]) -> tuple[RoleTag, ...]:
    """The roles as tags have them; no two have the same name."""
    found: dict[str, RoleTag] = {}
    for name, replicas in roles:
        word = tag_value(name)
        while word in found:
            word = f"{word[: _LONGEST - 8]}-{len(found)}"
        found[word] = RoleTag(word, replicas)
    return tuple(found.values())
