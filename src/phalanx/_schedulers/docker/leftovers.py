"""What programs that were killed have left in the engine: networks, volumes, a container that was
being filled, or created for a launch and never started. Apps and launches whose containers run are
none of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.engine import Engine, NameTaken, NotInEngine, moment
from phalanx._schedulers.docker.request import user_name

_YOUNG = 120.0
"""Seconds in which the containers of a network or volume may still be to come."""


def remove_leftovers(engine: Engine) -> None:
    """Remove those of this user's. Raises `SchedulerError`."""
    mine = {"label": f"{labels.USER}={user_name()}"}
    now = moment(engine.info().get("SystemTime")) or time.time()  # by its own clock

    def is_old(created: float | None) -> bool:
        return created is not None and now - created > _YOUNG

    with engine.errors("look for what was left"):
        listed = engine.api.containers(all=True, filters=mine)
        kept = []
        for entry in listed:
            if _is_unfinished(entry) and is_old(float(entry["Created"])):
                engine.remove_container(entry["Id"])
            else:
                kept.append(entry)
        used = {owner for entry in kept for owner in _owners(entry["Labels"])}
        for network in engine.api.networks(filters=mine):
            owners = {*_owners(network.get("Labels") or {})}
            if owners and not owners & used and is_old(moment(network.get("Created"))):
                _remove_network(engine, network["Id"])
        for volume in engine.api.volumes(filters=mine).get("Volumes") or ():
            owners = {*_owners(volume.get("Labels") or {})}
            if owners and not owners & used and is_old(moment(volume.get("CreatedAt"))):
                engine.remove_volume(volume["Name"])


def _is_unfinished(entry: Mapping[str, Any]) -> bool:
    """Whoever made the container would have gone on with it at once."""
    own = entry["Labels"]
    return labels.FILLING in own or (labels.LEASE in own and entry["State"] == "created")


def _remove_network(engine: Engine, network: str) -> None:
    """A network that others may remove as well, or are just leaving."""
    try:
        with engine.errors("remove a network"):
            engine.api.remove_network(network)
    except (NotInEngine, NameTaken):
        pass


def _owners(own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The app or lease that something belongs to, by its labels."""
    if labels.FILLING not in own:
        for kind in (labels.APP, labels.LEASE):
            if kind in own:
                yield kind, own[kind]
