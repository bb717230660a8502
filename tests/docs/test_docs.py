"""Every example runs, and every snippet of the documentation prints what the page says."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.S)


def file_of(text, start):
    """The name that the page has the reader save a snippet under."""
    before = text[:start].rpartition("```")[2]
    return (re.findall(r"[Ss]ave as `(\w+\.py)`", before) or ["train.py"])[-1]


SNIPPETS = [
    pytest.param(
        page, file_of(page.read_text(), match.start()), *match.groups(), id=f"{page.name}-{i}"
    )
    for page in PAGES
    for i, match in enumerate(BLOCK.finditer(page.read_text()))
    if page.name != "design.md"
]


def normal(text, directory):
    """What differs between runs: paths, times, pids."""
    text = text.replace(f"{directory}/", "/home/me/")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d.-]+", "TIME", text)
    text = re.sub(r"after \d+\.\d s", "after N s", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


@pytest.mark.parametrize(("page", "name", "code", "expected"), SNIPPETS)
def test_snippets_print_what_the_page_says(page, name, code, expected, tmp_path):
    """As a file of its own, in an empty directory."""
    path = tmp_path / name
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=280
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
    """Without what differs between runs: ids, times, paths, what a slow machine waits for."""
    text = re.sub(r"^phalanx: .* \(\d+ s\)\n", "", text, flags=re.M)
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
                timeout=280,
                env={**os.environ, "PATH": programs},
            )
            shown = said(done.stdout, tmp_path)
            assert agrees(said(expected, tmp_path), shown), f"$ {command}\n{done.stdout}"


OF_FRAMEWORKS = ("accelerate", "deepspeed", "hf", "jax", "lightning", "sweep", "torchtune")
"""What examples of frameworks begin with: test_frameworks.py runs those."""
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*.py"))
    if not path.name.startswith(OF_FRAMEWORKS)
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    """As they are."""
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=280
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
        timeout=280,
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


def words_of(picture):
    """The lines of text in a terminal's picture, less what differs between runs, in any order."""
    rows = {}
    for x, y, text in re.findall(
        r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture
    ):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    lines = ("".join(text for _, text in sorted(row)) for row in rows.values())
    return sorted(re.sub(r"after [\d.]+ s|logs/[\dT.-]+", "…", line).rstrip() for line in lines)


def test_pictures_show_what_a_terminal_shows(tmp_path):
    """`make pictures` draws them."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_pictures.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    drawn = {path.name: words_of(path.read_text()) for path in tmp_path.glob("*.svg")}
    kept = (ROOT / "docs" / "pictures").glob("*.svg")
    assert drawn == {path.name: words_of(path.read_text()) for path in kept}
