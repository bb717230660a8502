"""A rendezvous in a directory that hosts share, as a plugin's author may write one."""

import fcntl
import json
import os
import time
import uuid
from contextlib import contextmanager

from phalanx.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousTimeoutError,
)

EMPTY = {"round": 0, "members": [], "waiting": [], "closed": False}


class DirectoryStore:
    """A round's keys, a file each."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def set(self, key, value):
        file = self.directory / key.replace("/", "%")
        file.with_suffix(f".{uuid.uuid4().hex}").write_text(value)
        os.replace(next(self.directory.glob(f"{file.name}.*")), file)

    def get(self, key):
        while not self.check([key]):
            time.sleep(0.01)
        return (self.directory / key.replace("/", "%")).read_bytes()

    def check(self, keys):
        return all((self.directory / key.replace("/", "%")).exists() for key in keys)


class DirectoryRendezvous(RendezvousHandler):
    """Hosts write down that they wait; whoever sees that they are enough begins the round."""

    def __init__(self, directory, run_id, min_hosts, max_hosts, timeout):
        self.place = directory / run_id
        self.place.mkdir(parents=True, exist_ok=True)
        self.own = uuid.uuid4().hex
        self.run_id, self.bounds, self.timeout = run_id, (min_hosts, max_hosts), timeout

    @contextmanager
    def state(self):
        """What is known, while nobody else changes it."""
        with open(self.place / "state", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            state = json.loads(file.read() or json.dumps(EMPTY))
            yield state
            file.truncate(0)
            file.write(json.dumps(state))

    def next_rendezvous(self):
        began = time.monotonic()
        with self.state() as state:
            self.leave(state)
            state["waiting"].append(self.own)
        while True:
            with self.state() as state:
                if state["closed"]:
                    self.leave(state)
                    raise RendezvousClosedError(f"{self.run_id} is closed.")
                least, most = self.bounds
                late = time.monotonic() > began + 0.3 or len(state["waiting"]) >= most
                if not state["members"] and len(state["waiting"]) >= least and late:
                    state["members"] = sorted(state["waiting"][:most])
                    state["waiting"] = state["waiting"][most:]
                    state["round"] += 1
                if self.own in (members := state["members"]):
                    store = DirectoryStore(self.place / f"round-{state['round']}")
                    return RendezvousInfo(store, members.index(self.own), len(members))
                if time.monotonic() > began + self.timeout:
                    self.leave(state)
                    raise RendezvousTimeoutError(f"only {len(state['waiting']) + 1} came.")
            time.sleep(0.02)

    def leave(self, state):
        state["members"] = [host for host in state["members"] if host != self.own]
        state["waiting"] = [host for host in state["waiting"] if host != self.own]

    def num_nodes_waiting(self):
        with self.state() as state:
            return len(state["waiting"])

    def is_closed(self):
        with self.state() as state:
            return state["closed"]

    def set_closed(self):
        with self.state() as state:
            state["closed"] = True

    def shutdown(self):
        with self.state() as state:
            self.leave(state)
        return True

    def get_run_id(self):
        return self.run_id

    def get_backend(self):
        return "directory"
