"""What a function will import, found without running anything."""

import functools
import os
import sys
import textwrap

import pytest

from phalanx._launcher.planning import imports, script_files


def modules(needs):
    return [item.module for item in needs.preload]


def of_file(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    return imports.of_file(path, "f")


def test_the_leading_imports_of_a_file_in_order(tmp_path):
    """Installed packages only; the standard library and ourselves need no preloading."""
    needs = of_file(
        tmp_path,
        '''
        """Docstring."""
        from __future__ import annotations
        import os, numpy
        import phalanx
        from torch import nn
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import mypy
        try:
            import rich
        except ImportError:
            rich = None
        os.environ["X"] = "1"
        import hypothesis
    ''',
    )
    assert modules(needs) == ["numpy", "torch", "rich"]
    assert needs.preload[1].names == ("nn",)
    assert needs.torch


def test_imports_behind_other_statements_still_count_as_use(tmp_path):
    """Not preloaded, but torch is known to be used."""
    needs = of_file(tmp_path, "x = print()\nif x is None:\n    import torch.distributed\n")
    assert modules(needs) == []
    assert needs.torch


def test_of_the_functions_in_a_file_only_the_named_one_counts(tmp_path):
    """Another's imports are not its own."""
    code = "def f():\n    import numpy\n    print()\n    import rich\ndef g():\n    import torch\n"
    needs = of_file(tmp_path, code)
    assert modules(needs) == ["numpy"]
    assert not needs.torch


def test_the_users_own_modules_are_read_and_not_preloaded(tmp_path, monkeypatch):
    """Recursively, relative imports and packages too."""
    package = tmp_path / "pkg_under_test"
    package.mkdir()
    (package / "__init__.py").write_text("from . import inner\n")
    (package / "inner.py").write_text("import numpy\nfrom .deep import thing\n")
    (package / "deep.py").write_text("import rich\nimport pkg_under_test\nthing = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needs = of_file(tmp_path, "import pkg_under_test.inner\n")
    assert sorted(modules(needs)) == ["numpy", "rich"]
    assert not needs.torch
    assert "pkg_under_test" not in sys.modules


def test_a_file_that_does_not_parse_needs_nothing(tmp_path):
    """The worker will say what is wrong with it."""
    found = of_file(tmp_path, "this is not python")
    assert (found.preload, found.torch, found.late) == ((), False, ())


def test_modules_in_nested_directories_without_an_init_file(tmp_path, monkeypatch):
    """They are found without importing what is above them."""
    (tmp_path / "outer_under_test" / "inner").mkdir(parents=True)
    module = tmp_path / "outer_under_test" / "inner" / "deep.py"
    module.write_text("import rich\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needs = of_file(tmp_path, "from outer_under_test.inner.deep import x\n")
    assert str(module) in needs.files


@pytest.fixture
def files(tmp_path):
    """Write files, and say which of them a script or module needs."""

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('_in_', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name in ("pkg", "pkg/sub"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "__init__.py").touch()

    write.of_script = lambda name: relative(script_files.of_script(name, str(tmp_path)))
    write.of_module = lambda name: relative(script_files.of_module(name, str(tmp_path)))

    def relative(found):
        return sorted(os.path.relpath(path, tmp_path) for path in found)

    return write


def test_a_script_needs_what_it_imports_wherever_in_it(files):
    """Of the user's: in functions, by packages, relatively; not what is installed or not there."""
    files(
        train="import os, torch, nowhere, a\ndef main():\n    from pkg.sub import deep\n",
        a="import b, a\n",
        b="this is not python",
        unused="",
        space_in_inner_in_c="",
        pkg_in_sub_in_deep="from ..near import x\nimport space.inner.c\n",
        pkg_in_near="",
    )
    assert files.of_script("train.py") == sorted(
        ["a.py", "b.py", "pkg/__init__.py", "pkg/near.py", "pkg/sub/__init__.py"]
        + ["pkg/sub/deep.py", "space/inner/c.py", "train.py"]
    )
    assert files.of_script("nowhere.py") == []


def test_a_script_in_a_directory_imports_from_there(files):
    """As Python does; a directory is run by its `__main__.py`."""
    files(
        sub_in_run="import beside\n",
        sub_in_beside="",
        beside="",
        app_in___main__="import x\n",
        x="",
    )
    assert files.of_script("sub/run.py") == ["sub/beside.py", "sub/run.py"]
    assert files.of_script("app") == ["app/__main__.py"]


def test_a_module_needs_its_packages_and_what_it_imports(files):
    """A package is run by its `__main__`; one that is installed needs nothing of here."""
    files(
        pkg_in_train="from . import near\nimport top\n", pkg_in_near="", top="", pkg_in___main__=""
    )
    assert files.of_module("pkg.train") == [
        "pkg/__init__.py",
        "pkg/near.py",
        "pkg/train.py",
        "top.py",
    ]
    assert files.of_module("pkg") == ["pkg/__init__.py", "pkg/__main__.py"]
    assert files.of_module("json.tool") == files.of_module("nowhere") == []


def run(code, name="f", **names):
    namespace = {"__name__": "__main__", **names}
    exec(textwrap.dedent(code), namespace)
    return namespace[name]


def test_imports_in_the_functions_own_body():
    """Also of functions and classes that it calls, and of nested ones."""
    needs = imports.of_function(
        run("""
        def helper():
            import numpy.linalg
        class Model:
            def forward(self):
                def inner():
                    import rich.text
                return inner
        def f():
            from torch import distributed as dist
            helper()
            return Model().forward()
    """)
    )
    assert sorted(modules(needs)) == ["numpy.linalg", "rich.text", "torch"]


def test_imports_behind_a_change_of_the_environment_are_left_alone():
    """What it sets may be for them."""
    needs = imports.of_function(
        run("""
        import os
        def f():
            import numpy
            rank = os.environ["RANK"]
            import rich
            os.environ["OMP_NUM_THREADS"] = "4"
            import torch
    """)
    )
    assert modules(needs) == ["numpy", "rich"]
    assert needs.torch


def test_modules_used_as_globals_as_in_a_notebook():
    """There is no source to read, but the names are there."""
    numpy = pytest.importorskip("numpy")
    needs = imports.of_function(run("def f():\n    return numpy.ones(3)\n", numpy=numpy))
    assert modules(needs) == ["numpy"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: functools.partial(f),
        lambda f: functools.wraps(f)(lambda: f()),
        lambda f: type("C", (), {"__call__": lambda self: f()})(),
    ],
)
def test_wrapped_functions_are_looked_into(wrap):
    """Partials, decorators, callable objects."""
    inner = run("def f():\n    import numpy\n")
    assert "numpy" in modules(imports.of_function(wrap(inner)))


def test_builtins_and_packages_that_freeze_their_rank():
    """Nothing to find; and nothing that is known to read its rank when imported."""
    assert imports.of_function(print) == imports.Needs((), torch=False)
    assert modules(imports.of_function(run("def f():\n    import lightning\n"))) == []


def test_what_runs_after_a_change_of_the_environment_is_not_loaded_before(tmp_path, monkeypatch):
    """Though the change is in another file, or the import in another function."""
    (tmp_path / "sets.py").write_text("import os\nos.environ['MINE'] = '1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needs = of_file(tmp_path, "import sets\nimport numpy\ndef f(): numpy.ones(1)")
    assert "numpy" not in modules(needs)
    assert "numpy" in needs.late

    names = {}
    exec(
        "import os\n"
        "def helper():\n    import numpy\n    return numpy\n"
        "def f():\n    os.environ['MINE'] = '1'\n    return helper()\n"
        "def plain():\n    return helper()\n",
        names,
    )
    needs = imports.of_function(names["f"])
    assert "numpy" not in modules(needs)
    assert "numpy" in needs.late
    assert "numpy" in modules(imports.of_function(names["plain"]))
