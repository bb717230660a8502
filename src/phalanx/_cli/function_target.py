"""A function that is named on the command line: where it is, what it imports, and itself."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phalanx._core import launch_guard
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._launcher.planning import imports
from phalanx._system.near_files import current_directory, no_such_file
from phalanx.errors import ConfigError


def check_target(text: str, following: Sequence[str]) -> None:
    """Refuse what is nearly a target, with what was meant. Raises `ConfigError`."""
    source, colons, function = text.partition("::")
    if not colons and text.endswith(".py") and following and following[0].isidentifier():
        source, function = text, following[0]
    if source and function:
        raise ConfigError(f"{text!r} names no function. Did you mean {source}:{function}?")


class FunctionTarget:
    """`FILE.py:FUNCTION` or `MODULE:FUNCTION`."""

    def __init__(self, text: str) -> None:
        """Find the file; nothing is loaded. Raises `ConfigError`."""
        self.source, colon, self.function = text.rpartition(":")
        if not colon or not self.source or not self.function:
            raise ConfigError(
                f"{text!r}: expected FILE.py:FUNCTION or MODULE:FUNCTION, such as train.py:main"
            )
        self.is_file = self.source.endswith(".py") or os.sep in self.source
        if self.is_file and not Path(self.source).is_file():
            raise ConfigError(no_such_file(self.source))
        self._root, self._name = self._locate()
        sys.path.insert(0, str(self._root))

    def _locate(self) -> tuple[Path, str]:
        """The directory to import from, and the module's full name, packages included."""
        if not self.is_file:
            return Path(current_directory()), self.source
        path = Path(self.source).absolute()
        parts = [path.stem]
        root = path.parent
        while (root / "__init__.py").is_file() and root != root.parent:
            parts.insert(0, root.name)
            root = root.parent
        return root, ".".join(parts)

    def needs(self) -> imports.Needs:
        """What the file imports, without importing it."""
        path = Path(self.source) if self.is_file else imports.find_source(self.source)
        if path is None:
            return imports.Needs((), torch=False)
        return imports.of_file(path, self.function, self._name.rpartition(".")[0])

    @property
    def program(self) -> str:
        """What a script's `sys.argv` begins with: the file as it was named, a module's own."""
        path = None if self.is_file else imports.find_source(self.source)
        return self.source if path is None else str(path)

    def load(self) -> Callable[..., Any]:
        """Import the file or module, and give the function."""
        with launch_guard.loading(self.source):
            module = self._load_file() if self.is_file else self._load_module()
        found: Any = module
        for part in self.function.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise ConfigError(self._not_found(module))
        return found  # type: ignore[no-any-return]

    def _load_module(self) -> Any:
        if importlib.util.find_spec(self._name.partition(".")[0]) is None:
            raise ConfigError(
                f"no module named {self._name!r}, neither installed nor in the current directory."
            )
        return importlib.import_module(self._name)

    def _load_file(self) -> Any:
        """By its name where that leads to this very file, else as it is: names may be taken."""
        path = str(Path(self.source).absolute())
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(self._name)
        if spec is not None and spec.origin == path and self._name not in sys.modules:
            return importlib.import_module(self._name)
        loader = importlib.machinery.SourceFileLoader(f"phalanx_launched_{Path(path).stem}", path)
        spec = importlib.util.spec_from_loader(loader.name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[loader.name] = module
        loader.exec_module(module)
        return module

    def _not_found(self, module: Any) -> str:
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        hint = did_you_mean(closest(self.function, names))
        return f"{self.source} has no function {self.function!r}.{hint}"
