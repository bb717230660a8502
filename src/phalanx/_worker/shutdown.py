"""How a forked worker leaves: what a user sees of an interpreter's exit, without its cost.

Tearing down an interpreter that has imported torch takes a tenth of a second and more, and touches
every page that the workers share with the zygote: a second for eight workers on two cores. So we do
in order what Python does (wait for threads, run atexit, drop the modules that the worker itself
loaded, so that files close and finalizers run, flush), and then leave at once.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from phalanx._system.installed_files import is_installed

UNWRITTEN = 120
"""The exit code of an interpreter that could not write what was printed, as Python has it."""


def exit_worker(code: int, *, preloaded: Sequence[str]) -> NoReturn:
    """End this process as `sys.exit(code)` in a script would. Blocks for non-daemon threads.

    `preloaded` are the modules that are not the user's, in the order of `sys.modules`.
    """
    private_threading: Any = threading
    private_atexit: Any = atexit
    try:
        private_threading._shutdown()
        private_atexit._run_exitfuncs()
        _drop_modules(preloaded)
    except BaseException:  # noqa: BLE001 an exit that fails still exits, and says so
        sys.excepthook(*sys.exc_info())
        code = code or 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                pass  # whoever reads has had enough
            except OSError:
                code = code or UNWRITTEN
            except Exception:  # noqa: BLE001 a stream of the user's own raises anything
                pass
        os._exit(code & 0xFF)


def disown_finalizers() -> None:
    """Have what packages want finalized when this process ends left alone by those forked from it.

    It is not theirs: a temporary directory would go with the first of them. Torch has hundreds of
    such finalizers, which cost a worker 25 ms.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


def _drop_modules(preloaded: Sequence[str]) -> None:
    """Empty the user's own modules; installed ones and the standard library stay usable."""
    if threading.active_count() > 1:
        return  # a daemon thread may still use them
    # What was loaded under that name before was not the user's.
    own = [module] if (module := sys.modules.get("__main__")) is not None else []
    for name in _loaded_since(preloaded):
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        if file is not None and not is_installed(file) and name.partition(".")[0] != "phalanx":
            own.append(module)
    for module in own:
        names = vars(module)
        for key in [n for n in names if not n.startswith("__")]:
            names[key] = None
    gc.collect()


def _loaded_since(preloaded: Sequence[str]) -> list[str]:
    """The modules that were not loaded before. They are the last: to look at all of them would
    cost a fork a page of its own for each.
    """
    last = preloaded[-1] if preloaded else None
    new = list(itertools.takewhile(lambda name: name != last, reversed(sys.modules)))
    known = frozenset(preloaded) if new else frozenset()
    return [name for name in reversed(new) if name not in known and name != "__main__"]
