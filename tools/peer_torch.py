"""`torch.distributed.elastic`, `.launcher` and `.run` on Phalanx, for torch's own tests.

Tests import this package instead of `torch.distributed`, and so do the workers that they start; any
module that torch has below it is here. Every module has the same names: ours where we have one,
torch's for what workers use beside us, such as its log specs, and nothing for the rest.
"""

# ruff: noqa: ANN001, ANN003, ANN201, ANN202, ANN204

import contextlib
import http.client
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types

from peer_missing import Absent, missing

from phalanx import agent, events, metrics, rendezvous
from phalanx._rendezvous import endpoints
from phalanx._system import machine

HAS_ETCD = shutil.which("etcd") is not None

_THEIRS = {
    "torch.distributed.elastic.multiprocessing": ("DefaultLogsSpecs", "LogsSpecs", "Std"),
    "torch.distributed.elastic.multiprocessing.errors": ("record",),
    "torch.distributed.elastic.utils": ("get_socket_with_port",),
    "torch.distributed.elastic.utils.distributed": ("get_free_port",),
    "torch.distributed.elastic.agent.server.local_elastic_agent": (
        "TORCHELASTIC_ENABLE_FILE_TIMER",
        "TORCHELASTIC_HEALTH_CHECK_PORT",
        "TORCHELASTIC_TIMER_FILE",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    ),
}


class EtcdServer:
    """A real etcd, of version 3, where torch's is of the v2 API; without one, only an endpoint."""

    def start(self):
        self._process = self._data = None
        self._port, peer = _free_port(), _free_port()
        if not HAS_ETCD:
            return
        self._data = tempfile.mkdtemp(prefix="peer-etcd-")
        words = ["etcd", "--data-dir", self._data, "--initial-cluster", f"default={_url(peer)}"]
        words += ["--listen-peer-urls", _url(peer), "--initial-advertise-peer-urls", _url(peer)]
        words += ["--listen-client-urls", _url(self._port)]
        words += ["--advertise-client-urls", _url(self._port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdout=quiet, stderr=quiet)
        limit = time.monotonic() + 60
        while True:
            try:
                self.version = self._ask_version()
                return
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)

    def _ask_version(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/version")
            return json.load(connection.getresponse())["etcdserver"]

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._data)

    def get_host(self):
        return "localhost"

    def get_port(self):
        return self._port

    def get_endpoint(self):
        return f"localhost:{self._port}"

    def get_client(self):
        if not HAS_ETCD:
            raise Absent("etcd is not there")
        return self


def _free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def _url(port):
    return f"http://127.0.0.1:{port}"


class RendezvousParameters(rendezvous.RendezvousParameters):
    """Made as torch's are, with settings as keywords; ours are made for plugins."""

    def __init__(self, backend, endpoint, run_id, min_nodes, max_nodes, local_addr=None, **config):
        super().__init__(backend, endpoint, run_id, min_nodes, max_nodes, config)


def get_rendezvous_handler(params):
    """For agents; those of the tests that want etcd want its v2 API."""
    if params.backend.startswith("etcd"):
        raise Absent("the v2 API of etcd is not used")
    return create_rdzv_handler(params)


def create_rdzv_handler(params):
    if params.backend.startswith("etcd") and not HAS_ETCD:
        raise Absent("etcd is not there")
    bounds = params.min_nodes, params.max_nodes
    handler = rendezvous.get_handler
    return handler(params.backend, params.endpoint, params.run_id, *bounds, **settings(params))


def settings(params):
    """What says who holds the store is ours to find out."""
    return {key: value for key, value in params.config.items() if key != "is_host"}


def main(args=None):
    """Torch's raises for workers that fail, ours gives the exit code."""
    from phalanx._cli.commands import torchrun

    code = torchrun.main(sys.argv[1:] if args is None else list(args))
    if code > 128:
        raise SystemExit(f"ended by {signal.Signals(code - 128).name}")
    if code:
        raise agent.ChildFailedError("torchrun", {})


def parse_min_max_nnodes(text):
    from phalanx._elastic.command import given_flags, rendezvous_choice

    return rendezvous_choice._hosts(given_flags.read([f"--nnodes={text}", "script.py"], {}))


def parse_rendezvous_endpoint(endpoint, default_port):
    host, port = endpoints.parse_endpoint(endpoint or "")
    return host, default_port if port is None else port


def _parse_rendezvous_config(text):
    from phalanx._elastic.command import given_flags, rendezvous_choice

    return rendezvous_choice._conf(given_flags.read([f"--rdzv-conf={text}", "script.py"], {}))


def _names():
    found = {"events": events, "metrics": metrics}
    for module in (agent, rendezvous, events, metrics):
        found.update({name: getattr(module, name) for name in module.__all__})
    own = [EtcdServer, RendezvousParameters, get_rendezvous_handler, main, parse_min_max_nnodes]
    own += [create_rdzv_handler, parse_rendezvous_endpoint, _parse_rendezvous_config]
    found["_matches_machine_hostname"] = machine.is_this_machine
    return found | {one.__name__: one for one in own}


_OF_ONE = {
    "configure": {"elastic.metrics": metrics.configure, "elastic.events": events.configure},
    "record": {"elastic.events": events.record, "elastic.events.api": events.record},
}
"""Names that are not the same thing in each module."""
NAMES = _names()


def _get(module, name):
    own = module.removeprefix(f"{__name__}.")
    if own in _OF_ONE.get(name, {}):
        return _OF_ONE[name][own]
    for theirs, names in _THEIRS.items():
        if name in names:
            return getattr(importlib.import_module(theirs), name)
    if name in NAMES and name not in _OF_ONE:
        return NAMES[name]
    if name in json.loads(os.environ.get("PEER_MISSING", "[]")):
        return missing(name)
    raise AttributeError(f"{module} does not have the attribute {name!r}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path, target=None):
        if not fullname.startswith(f"{__name__}."):
            return None
        theirs = fullname.replace(__name__, "torch.distributed", 1)
        if importlib.util.find_spec(theirs) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        made = types.ModuleType(spec.name)
        made.__getattr__ = lambda name: _get(spec.name, name)
        return made

    def exec_module(self, module):
        pass


__path__ = []
sys.meta_path.insert(0, _Finder())
