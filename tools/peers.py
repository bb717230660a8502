"""Run other launchers' own tests on Phalanx: `make peers`, or `python tools/peers.py torchx`.

`peer_suites/NAME.toml` names the files of a peer's checkout, and gives a reason for each test that
differs or does not apply, and the names that we do not have, with how many tests need each; any
other test that fails is an error. `--write` puts the table into `docs/peers.md`. The checkout is
where the variable of the suite says, or is cloned.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUITES = Path(__file__).parent / "peer_suites"
PAGE = ROOT / "docs" / "peers.md"
KINDS = ("pass", "differ", "not applicable", "unexplained")
ABSENT = "is not there"
"""What the error of a test says that uses a name which we do not have."""


def main() -> int:
    """Run the suites that are named, or all; 0 if every failure has a reason."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="suites; by default all")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    code = 0
    parts = []
    before = written()
    for path in sorted(SUITES.glob("*.toml")):
        suite = tomllib.loads(path.read_text())
        if options.names and path.stem not in options.names:
            parts.append(before.get(suite["title"], ""))
            continue
        results = classify(suite, run(path.stem, suite))
        parts.append(page_of(path.stem, suite, results))
        counts = collections.Counter(kind for kind, _ in results.values())
        print(f"{path.stem}: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS))
        for test, (kind, reason) in results.items():
            if kind == "unexplained":
                print(f"  {test}: {reason}")
                code = 1
    if options.write:
        head = (
            "# Other launchers' tests\n\n`make peers` runs them on Phalanx. Their packages do not "
        )
        head += "contain them: they are taken from the checkouts that PEERS_TORCH and PEERS_TORCHX "
        head += "name, or from clones.\n"
        PAGE.write_text("\n".join([head, *parts]))
    return code


def written() -> dict[str, str]:
    """The sections of the page as it is, by their titles."""
    sections = PAGE.read_text().split("\n## ")[1:] if PAGE.exists() else []
    return {text.partition("\n")[0]: f"## {text.rstrip()}\n" for text in sections}


def checkout(suite: dict[str, Any]) -> Path:
    """The peer's sources: where the variable says, or cloned."""
    if place := os.environ.get(suite["variable"]):
        return Path(place)
    target = ROOT / ".venv-peers" / suite["repository"].rpartition("/")[2]
    if not target.is_dir():
        clone = ["git", "clone", "-q", "--depth", "1", "--branch", suite["tag"]]
        subprocess.run([*clone, suite["repository"], str(target)], check=True)
    return target


def run(name: str, suite: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The outcome of every test, and the last line of its error."""
    sources = checkout(suite)
    with tempfile.TemporaryDirectory(prefix="phalanx-peers-") as place:
        tests, library = Path(place, "tests"), Path(place, "library")
        tests.mkdir()
        library.mkdir()
        for file in suite["files"]:
            text = relocated((sources / file).read_text(), sources / file)
            for pattern, instead in suite.get("instead", {}).items():
                text = re.sub(pattern, instead, text)
            (tests / file.replace("/", "__")).write_text(text)
        shutil.copy(Path(__file__).parent / "peers_conftest.py", tests / "conftest.py")
        for helper in ("peer_missing.py", "peer_torch.py", "peer_handlers.py"):
            shutil.copy(Path(__file__).parent / helper, library / helper)
        for module, text in suite.get("modules", {}).items():
            (library / f"{module}.py").write_text(text)
        env = {
            **os.environ,
            "PEER": suite.get("package", name),
            "PEER_SOURCES": str(sources),
            "PEER_SUPPORT": json.dumps(suite.get("support", {})),
            "PEER_NAMES": json.dumps(suite.get("names", {})),
            "PEER_QUIET": json.dumps(suite.get("quiet", [])),
            "PEER_RESULTS": f"{place}/results.json",
            "PYTHONPATH": str(library),
            "HOME": place,
            "XDG_STATE_HOME": f"{place}/state",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
        command += ["-c", os.devnull, "--rootdir", str(tests), "--timeout=120"]
        command += ["-o", "python_files=*__*.py"]  # each once, whatever its name
        command += ["--continue-on-collection-errors", str(tests)]
        done = subprocess.run(
            command, cwd=tests, env=env, capture_output=True, text=True, check=False
        )
        found = Path(place, "results.json")
        if not found.exists():
            raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
        outcomes = json.loads(found.read_text())
    return {test.replace("__", "/"): tuple(outcome) for test, outcome in outcomes.items()}


def relocated(text: str, path: Path) -> str:
    """A test's source, which looks for files beside itself where it was."""
    return text.replace("__file__", repr(str(path)))


def classify(
    suite: dict[str, Any], outcomes: dict[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """The kind of every test, with the reason for what does not pass."""
    found: dict[str, tuple[str, str]] = {}
    absent: collections.Counter[str] = collections.Counter()
    for test, (outcome, error) in outcomes.items():
        listed = [
            (kind, reason)
            for kind, key in (("differ", "differ"), ("not applicable", "not-applicable"))
            for begin, reason in suite.get(key, {}).items()
            if test == begin or test.startswith((f"{begin}::", f"{begin}["))
        ]
        if outcome == "passed":
            found[test] = "pass", ""
        elif listed:
            found[test] = listed[0]
        elif ABSENT in error:
            absent[error] += 1
            is_known = absent[error] <= suite.get("absent", {}).get(error, 0)
            found[test] = "not applicable" if is_known else "unexplained", error
        elif outcome == "skipped":
            found[test] = "not applicable", "the peer skips it here"
        else:
            found[test] = "unexplained", error
    return found


def page_of(name: str, suite: dict[str, Any], results: dict[str, tuple[str, str]]) -> str:
    """A section of the page: counts for each file, and the reasons."""
    note = f" {suite['note']}" if "note" in suite else ""
    lines = [f"## {suite['title']}", "", f"{suite['repository']}, {suite['tag']}.{note}", ""]
    lines += ["| file | pass | differ | not applicable |", "|---|---|---|---|"]
    for file in suite["files"]:
        kinds = [kind for test, (kind, _) in results.items() if test.partition("::")[0] == file]
        counts = " | ".join(str(kinds.count(kind)) for kind in KINDS[:3])
        lines.append(f"| `{file}` | {counts} |")
    kinds = [kind for kind, _ in results.values()]
    lines.append(f"| all | {' | '.join(str(kinds.count(kind)) for kind in KINDS[:3])} |")
    for kind in ("differ", "not applicable"):
        grouped: dict[str, list[str]] = {}
        for test, (found, reason) in results.items():
            if found == kind:
                grouped.setdefault(reason, []).append(f"`{test.partition('::')[2] or test}`")
        lines += ["", f"### {kind.capitalize()} ({name})", "", "| why | tests |", "|---|---|"]
        lines += [f"| {why} | {', '.join(tests)} |" for why, tests in grouped.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
