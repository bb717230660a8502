"""Every example runs, and every snippet of the documentation prints what the page says."""

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
