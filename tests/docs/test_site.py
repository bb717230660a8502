"""The documentation site: it builds, everything is on it and found, and it needs nothing else."""

import ast
import dataclasses
import html
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from phalanx import _cli as cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "phalanx"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does: a broken link or anchor, or a page that is nowhere in the
    navigation, fails."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return place


def article(path):
    """What a page says, without its surroundings and its code."""
    text = path.read_text().partition("<article")[2].partition("</article>")[0]
    return re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.S)


def test_every_page_is_in_the_navigation(site):
    """And has a title there."""
    home = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        where = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert f'href="{where}"' in home, where


def test_every_page_can_be_reached_from_the_readme():
    """On GitHub there is no navigation."""
    seen, found = set(), [ROOT / "README.md"]
    while found:
        page = found.pop()
        if page not in seen:
            seen.add(page)
            links = [page.parent / link for link in LINK.findall(page.read_text())]
            found += [link.resolve() for link in links if link.suffix == ".md"]
    assert not {page.resolve() for page in DOCS.rglob("*.md")} - seen


PUBLIC = re.findall(r"^\| \[(phalanx[\w.]*)\]", (DOCS / "reference.md").read_text(), re.M)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_every_public_name(site, name):
    """At an address of its own."""
    page = site / "reference" / f"{name.rpartition('.')[2]}.html"
    ids = set(re.findall(r'id="([^"]+)"', page.read_text()))
    names = getattr(importlib.import_module(name), "__all__", ())
    assert {f"{name}.{public}" for public in names} <= ids


def test_the_reference_has_every_component(site):
    """Those that `phalanx builtins` lists."""
    text = (site / "reference" / "components.html").read_text()
    for path in (SOURCE / "components").glob("[!_]*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert f'id="phalanx.components.{path.stem}.{node.name}"' in text


def test_the_reference_has_every_command(site):
    """With what its help says."""
    text = html.unescape((site / "reference" / "commands.html").read_text())
    for verb in cli.VERBS:
        assert f'id="{verb}"' in text, verb
    assert text.count("usage: phalanx ") > len(cli.VERBS)


def test_pages_read_the_same_as_on_github(site):
    """No mark-up is left as text: mkdocs wants four blanks where GitHub does with three."""
    for page in site.rglob("*.html"):
        assert not re.search(r"```|\*\*|^ *- |^:::", article(page), re.M), page


def test_nothing_is_loaded_from_elsewhere(site):
    """The site works without a network."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.search(r'<(script|img|iframe)[^>]+src="(https?:)?//', text), page
        assert not re.search(r'<link[^>]+rel="(stylesheet|preconnect|icon)"[^>]+//', text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text()), sheet
    for picture in site.rglob("*.svg"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import|href=\"http", picture.read_text())


INTERNAL = {
    "App.show_status",
    "App.tell_failure",
    "App.forget",
    "Job.of_run",
    "Job.of_scheduler",
    "Job.look",
}
"""Methods that only our own modules call; the reference does not show them."""


def public_functions():
    """Those that the reference shows, less methods that only do what their base says."""
    for name in PUBLIC:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if inspect.isfunction(value):
                yield pytest.param(value, id=f"{name}.{public}")
            if not inspect.isclass(value) or name == "phalanx.testing":
                continue
            for member, function in vars(value).items():
                function = getattr(function, "__func__", function)
                inherited = any(member in vars(base) for base in value.__mro__[1:])
                hidden = member.startswith("_") or f"{public}.{member}" in INTERNAL or inherited
                if inspect.isfunction(function) and not hidden:
                    yield pytest.param(function, id=f"{name}.{public}.{member}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_public_functions_document_their_parameters(function):
    """Under `Args:`, by name."""
    _, _, told = (inspect.getdoc(function) or "").partition("Args:\n")
    for name in inspect.signature(function).parameters:
        if name not in ("self", "cls"):
            assert re.search(rf"^    \**{name}: ", told, re.M), name


def test_public_data_documents_its_fields():
    """With a sentence below each."""
    for name in PUBLIC:
        module = importlib.import_module(name)
        for kind in (getattr(module, public) for public in getattr(module, "__all__", ())):
            if not (inspect.isclass(kind) and dataclasses.is_dataclass(kind)):
                continue
            (source,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            for node, after in zip(source.body, [*source.body[1:], None]):
                if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_"):
                    assert isinstance(after, ast.Expr), f"{name}.{kind.__name__}.{node.target.id}"


def test_setting_up_says_what_failed(tmp_path):
    """What installers print is shown only then."""
    (tmp_path / "file").touch()
    done = subprocess.run(
        ["sh", str(ROOT / "tools" / "make-venv"), str(tmp_path / "file" / "venv")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"Creating {tmp_path}/file/venv with Python {sys.version.split()[0]}"
    ]
    assert "make-venv: this failed: " in done.stderr
