"""The tree as docs/design.md has it: layers, rooms, the public face, one name for one thing."""

import ast
import dataclasses
import functools
import importlib
import typing
from collections import Counter
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.launch_options import LaunchOptions, LaunchOptionsDict
from phalanx.errors import PhalanxError

SOURCE = Path(phalanx.__file__).parent

LAYERS = [
    "errors",
    "_core",
    "_aliases",
    "_wire",
    "_plugins",
    "_specs",
    "_system _remote",
    "_channel",
    "_logs",
    "_delivery",
    "events metrics",
    "_rendezvous.tcp.connections",
    "_rendezvous",
    "_rendezvous.etcd",
    "_rendezvous.tcp",
    "_rendezvous.handlers",
    "_worker.hooks",
    "_worker",
    "_agent.files _agent.stacks",
    "_agent.rounds",
    "_agent",
    "_registry",
    "_launcher.launch_options",
    "_schedulers.leases _schedulers.options _schedulers.scheduler_calls _schedulers.patience",
    "_launcher.transport",
    "_launcher.project",
    "_images",
    "_launcher.planning",
    "_launcher.payload _launcher.result _launcher.interrupts",
    "_schedulers.authoring",
    "_schedulers.scheduler _schedulers.torchx.runopts _schedulers.torchx.dryrun_info",
    "_schedulers.torchx.interface _schedulers.torchx.adapter _schedulers.factories",
    "_launcher.borrowed_hosts",
    "_launcher.warm",
    "_launcher.placement",
    "_launcher.reporting",
    "_launcher.agents",
    "_launcher.session",
    "_launcher.start",
    "_launcher.detached",
    "_launcher.inline _launcher.host_check _launcher.queued_run",
    "_launcher.calls.call_runner",
    "_launcher.calls.lanes _launcher.calls.jobs",
    "_launcher.calls",
    "_launcher.launcher",
    "_launcher.detached_host",
    "_elastic.command",
    "_elastic",
    "_schedulers.host_paths _schedulers.parallel _schedulers.daemon",
    "_schedulers.replicas",
    "_schedulers.docker.labels _schedulers.docker.engine",
    "_schedulers.kubernetes.api _schedulers.ray.options _schedulers.ray.resources",
    "_schedulers.kubernetes.options _schedulers.kubernetes.names _schedulers.kubernetes.manifest",
    "_schedulers.ray.job_log _schedulers.ray.command_stream",
    "_schedulers.ray.api",
    "_schedulers.ray.cluster",
    "_schedulers.kubernetes.apps _schedulers.ray.apps",
    "_schedulers.kubernetes.hosts _schedulers.ray.hosts",
    "_schedulers",
    "_runner",
    "agent cli rendezvous runner schedulers specs",
    "components",
    "testing",
    "_chaos",
    "_cli",
    "_cli.commands",
    "compat",
]
"""From the bottom to the top: what is in a layer imports from it and from those before it."""

PUBLIC = {
    "agent",
    "cli",
    "compat",
    "components",
    "errors",
    "events",
    "metrics",
    "rendezvous",
    "runner",
} | {
    "schedulers",
    "specs",
    "testing",
}
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms.split()}


def module_of(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in SOURCE.rglob("*.py")}


@functools.cache
def tree_of(path):
    """A file, parsed once for all tests."""
    return ast.parse(path.read_text())


def room_of(module):
    """The most specific room that a module is in."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if (room := ".".join(parts[:end])) in LEVEL:
            return room
    raise AssertionError(f"{module} is in no layer")


@functools.cache
def imports_of(path, *, typing_only=True):
    """Modules that a file imports, at its top or later; also those for type checkers alone."""
    return list(_imports_of(path, typing_only=typing_only))


def _imports_of(path, *, typing_only):
    tree = tree_of(path)
    checking = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in checking and not typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full.removeprefix("phalanx.") in MODULES else node.module


def test_imports_point_to_lower_layers_only():
    """Also within packages, and for types."""
    for module, path in MODULES.items():
        if module in ("__init__", "__main__", "_launcher") or module.startswith("_torch"):
            continue
        for name in imports_of(path):
            target = name.removeprefix("phalanx.")
            if target in MODULES and target != name and not target.startswith("_torch"):
                upper = LEVEL[room_of(target)] > LEVEL[room_of(module)]
                assert not upper, f"{module} imports {target}, which is above it"


def test_a_scheduler_knows_of_no_other_one():
    """What several need is in `_schedulers` or `_schedulers.replicas`."""
    shared = {"replicas", "torchx"}
    for module, path in MODULES.items():
        own = module.split(".")[1:3]
        if not module.startswith("_schedulers.") or len(own) < 2 or own[0] in shared:
            continue
        for name in imports_of(path):
            target = name.removeprefix("phalanx._schedulers.").split(".")
            if name.startswith("phalanx._schedulers.") and len(target) > 1:
                images = target == ["docker", "engine"]  # builds the images of other schedulers too
                assert target[0] in {*shared, own[0]} or images, f"{module} imports {name}"


@pytest.mark.parametrize(
    ("room", "other"),
    [
        ("_schedulers.kubernetes.hosts", "_schedulers.kubernetes.apps"),
        ("_schedulers.ray.hosts", "_schedulers.ray.apps"),
        ("_schedulers.ray.apps", "_schedulers.ray.cluster"),
        ("_agent.stacks", "_agent.files"),
        ("_agent.rounds", "_agent.files"),
    ],
)
def test_a_room_does_not_know_of_the_one_beside_it(room, other):
    """Where the layers alone would allow it."""
    inside = [path for module, path in MODULES.items() if module.startswith(f"{room}.")]
    assert inside
    assert any(module.startswith(f"{other}.") for module in MODULES)
    for path in inside:
        for name in imports_of(path):
            assert not name.startswith(f"phalanx.{other}."), f"{path} imports {name}"


def test_no_module_imports_what_imports_it():
    """There is an order inside every package."""
    graph = {
        module: {
            target
            for name in imports_of(path, typing_only=False)
            if (target := name.removeprefix("phalanx.")) in MODULES
        }
        - {module}
        for module, path in MODULES.items()
    }
    while graph:
        free = {module for module, targets in graph.items() if not targets & graph.keys()}
        assert free, f"these import each other: {sorted(graph)}"
        graph = {module: targets for module, targets in graph.items() if module not in free}


def test_torch_is_imported_in_one_package_only():
    """It is loaded by name, in workers."""
    for module, path in MODULES.items():
        for name in imports_of(path):
            ours = name == "phalanx._torch" or name.startswith("phalanx._torch.")
            if name.partition(".")[0] == "torch" or ours:
                assert module.startswith("_torch"), f"{module} imports {name}"


def test_what_has_no_underscore_is_public():
    """The tree itself says what may change."""
    names = {module.partition(".")[0] for module in MODULES} - {"__init__", "__main__", ""}
    assert {name for name in names if not name.startswith("_")} == PUBLIC


@pytest.mark.parametrize("name", ["", *(f".{name}" for name in sorted(PUBLIC))])
def test_what_is_public_is_listed_sorted_and_there(name):
    """`__all__` is the truth."""
    module = importlib.import_module(f"phalanx{name}")
    if name == ".components":  # its modules are what is public
        return
    constants_first = sorted(module.__all__, key=lambda name: (not name.isupper(), name))
    assert module.__all__ == constants_first
    assert all(getattr(module, public) is not None for public in module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing


def test_no_class_name_exists_twice():
    """One name, one meaning; but for others' names, which are in a package of their own."""
    names = Counter(
        node.name
        for module, path in MODULES.items()
        if not module.startswith("compat.")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_every_module_says_what_it_is_for():
    """One responsibility each."""
    for path in MODULES.values():
        assert ast.get_docstring(tree_of(path)), path


def test_every_option_of_a_launch_is_documented():
    """They are the command line's help."""
    tree = ast.parse(MODULES["_launcher.launch_options"].read_text())
    (cls,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "LaunchOptions"]
    for field, after in zip(cls.body, cls.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(after, ast.Expr), f"{field.target.id} has no docstring"


def test_launch_takes_what_launcher_has():
    """As keyword arguments that editors and type checkers know."""
    fields = {field.name: field.type for field in dataclasses.fields(phalanx.Launcher)}
    assert fields == {f.name: f.type for f in dataclasses.fields(LaunchOptions)}
    assert typing.get_type_hints(LaunchOptionsDict) == typing.get_type_hints(LaunchOptions)


def test_all_errors_have_one_root():
    """And the tree in the docstring is complete."""
    from phalanx import errors

    kinds = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(kind, PhalanxError) for kind in kinds)
    assert all(kind.__name__ in errors.__doc__ for kind in kinds)


def test_public_errors_are_named_as_users_import_them():
    """In tracebacks and pickles."""
    import pickle

    from phalanx import rendezvous

    error = pickle.loads(pickle.dumps(rendezvous.RendezvousTimeoutError("late")))
    assert type(error) is rendezvous.RendezvousTimeoutError
    assert {
        getattr(rendezvous, name).__module__ for name in rendezvous.__all__ if "Error" in name
    } == {"phalanx.rendezvous"}


def test_a_wait_that_is_cancelled_ends():
    """Before Python 3.12 `wait_for` may overlook it; `asyncio.timeout` does not."""
    for module, path in MODULES.items():
        assert "asyncio.wait_for(" not in path.read_text(), module
