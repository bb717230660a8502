"""What a job on the cluster runs: an app, or hosts for a launcher elsewhere."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from phalanx._schedulers.ray.cluster import nodes
from phalanx.errors import PhalanxError


def main(path: str) -> None:
    """Carry out the request in a file. Exits with the app's code."""
    with open(path) as file:
        request: dict[str, Any] = json.load(file)
    try:
        nodes.connect()
    except PhalanxError as error:
        sys.exit(str(error))
    if request["kind"] == "app":
        from phalanx._schedulers.ray.cluster.app_driver import run_app

        sys.exit(asyncio.run(run_app(request)))
    from phalanx._schedulers.ray.cluster.lend_driver import lend_hosts

    asyncio.run(lend_hosts(request))
