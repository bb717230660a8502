"""What `make docs` adds to docs/: the README and its neighbours, the examples, and commands' help.

A hook of mkdocs. Links are written as they work on GitHub, `../examples/hello.py`; here they are
turned to where the same thing is on the site. What leads nowhere fails the build.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\(|src=\")([^)\s\"#]*)((?:#[^)\s\"]*)?)(\)|\")")
HELP = re.compile(r"^```sh\n(phalanx .*--help)\n```$", re.MULTILINE)
log = get_plugin_logger("site")


def sources() -> dict[str, str]:
    """Where on the site each file of the repository is, by their paths."""
    docs = (path for path in (ROOT / "docs").rglob("*") if path.is_file())
    found = {_name(path): path.relative_to(ROOT / "docs").as_posix() for path in docs}
    found |= {_name(path): f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    found |= {"README.md": "index.md", "examples": "examples/index.md", "LICENSE": "LICENSE.md"}
    return found | {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md")}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose text is elsewhere."""
    for source, page in sources().items():
        if files.get_file_from_path(page) is None:
            text = _text(ROOT / source)
            files.append(File.generated(config, page, content=_turn_links(text, source, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that lead out of docs/, and show what the commands' help says."""
    if page.file.generated_by is None:
        markdown = _turn_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
    return HELP.sub(lambda found: f"{found[0]}\n\n```text\n{_output(found[1])}```", markdown)


def _text(path: Path) -> str:
    if path.is_dir():
        rows = [f"- [{p.name}]({path.name}/{p.name}): {_doc(p)}" for p in sorted(path.glob("*.py"))]
        return "# Examples\n\n" + "\n".join(rows) + "\n"
    if path.suffix == ".py":
        return f"# {path.name}\n\n{_doc(path)}\n\n```python\n{path.read_text()}```\n"
    if not path.suffix:
        return f"# License\n\n```text\n{path.read_text()}```\n"
    return path.read_text()


def _turn_links(markdown: str, source: str, page: str) -> str:
    """Links of a file of the repository, as links of its page."""
    places = sources()
    folder = posixpath.dirname(source) if source != "examples" else ""

    def turned(found: re.Match[str]) -> str:
        before, link, anchor, after = found.groups()
        target = posixpath.normpath(posixpath.join(folder, link))
        if not link or target not in places:  # within the page, or elsewhere: mkdocs checks it
            return found[0]
        there = posixpath.relpath(places[target], posixpath.dirname(page) or ".")
        return f"{before}{there}{anchor}{after}"

    # Not in code: there, brackets are not links.
    parts = re.split(r"(^ *```.*?^ *```$|`[^`\n]*`)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [LINK.sub(turned, part) for part in parts[::2]]
    return "".join(parts)


def _doc(path: Path) -> str:
    """The first paragraph of a program's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _output(command: str) -> str:
    environ = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1"}
    words = [sys.executable, "-m", *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        log.warning("%s exited with code %d", command, done.returncode)
    return done.stdout


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
