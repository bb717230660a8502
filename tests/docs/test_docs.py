"""Every example runs, and every snippet of the documentation prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.S)
SNIPPETS = [
    pytest.param(page, *match.groups(), id=f"{page.name}-{i}")
    for page in PAGES
    for i, match in enumerate(BLOCK.finditer(page.read_text()))
    if page.name not in ("design.md", "reference.md")
]


def normal(text, directory):
    """What differs between runs: paths, times, pids."""
    text = text.replace(f"{directory}/", "")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d.-]+", "TIME", text)
    text = re.sub(r"after \d+\.\d s", "after N s", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


@pytest.mark.parametrize(("page", "code", "expected"), SNIPPETS)
def test_snippets_print_what_the_page_says(page, code, expected, tmp_path):
    """As a file of its own, in an empty directory."""
    path = tmp_path / "train.py"
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if expected is not None:
        shown = normal(done.stdout, tmp_path)
        if (
            "Traceback" in expected
        ):  # rank 0's output, which the page leaves out, may come before it
            shown = shown[shown.index(expected.split("\n", 1)[0]) :]
        assert shown == normal(expected, tmp_path)


CONSOLE = re.compile(r"```console\n(.*?)```", re.S)
FILE = re.compile(r"```py\n# ([\w/]+\.py)\n(.*?)```", re.S)


def said(text, directory):
    """What differs between runs: ids, times, paths."""
    text = re.sub(r"-[0-9a-f]{8}\b", "-ID", text.replace(f"{directory}/", ""))
    return re.sub(r" in \d+\.\d+s", " in …", text)


def agrees(expected, shown):
    """The same, a line of `…` standing for any lines."""
    parts = [re.escape(part.strip("\n")) for part in re.split(r"^…$", expected, flags=re.M)]
    return re.fullmatch(r".*".join(parts), shown.strip("\n"), re.S) is not None


@pytest.mark.parametrize(
    "page", [page for page in PAGES if CONSOLE.search(page.read_text())], ids=lambda page: page.name
)
def test_what_is_typed_on_a_page_prints_what_it_says(page, tmp_path, monkeypatch):
    """Its files in one directory, its commands one after another."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    text = page.read_text()
    for name, code in FILE.findall(text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    for block in CONSOLE.findall(text):
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            done = subprocess.run(
                ["bash", "-c", f"{command} 2>&1"],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                timeout=110,
                env={**os.environ, "PATH": programs},
            )
            shown = said(done.stdout, tmp_path)
            assert agrees(said(expected, tmp_path), shown), f"$ {command}\n{done.stdout}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    """As they are."""
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_shell_command_of_the_readme_runs(tmp_path):
    """With the README's own first function."""
    readme = (ROOT / "README.md").read_text()
    (tmp_path / "train.py").write_text(BLOCK.search(readme).group(1))
    command = re.search(r"^phalanx launch .*$", readme, re.M).group()
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert "trained on 4 workers" in done.stdout, done.stderr
    assert "rank 3: " in done.stdout


def test_links_lead_somewhere():
    """Between the pages."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_table_of_fields_is_complete():
    """docs/launching.md names every field of Launcher, with its default."""
    import dataclasses

    import phalanx

    text = (ROOT / "docs" / "launching.md").read_text()
    for field in dataclasses.fields(phalanx.Launcher):
        assert f"`{field.name}`" in text, field.name


def test_the_reference_is_what_the_docstrings_say():
    """`make reference` writes it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_reference.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
