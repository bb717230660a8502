"""What a component must pass, as a `unittest` class."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from phalanx._runner import catalog
from phalanx._runner.runner import get_runner
from phalanx._specs import AppDef, AppStatus


class ComponentTestCase(unittest.TestCase):
    """Tests of components: subclass it, and call `validate` and `run_component`."""

    def setUp(self) -> None:
        """Make `test_dir`, which is the current directory during the test."""
        self.test_dir = tempfile.mkdtemp(prefix="phalanx-component-test-")
        self.old_cwd = os.getcwd()
        os.chdir(self.test_dir)

    def tearDown(self) -> None:
        """Remove `test_dir`."""
        os.chdir(self.old_cwd)
        shutil.rmtree(self.test_dir)

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Check that a function of a module is a component, and has a help.

        Args:
            module: The module.
            function_name: The function's name.

        Raises:
            ComponentError: It is not one.
        """
        assert module.__file__, f"{module} has no file"
        found = catalog.find(f"{os.path.abspath(module.__file__)}:{function_name}")
        assert found.help()

    def run_component(
        self,
        component: Callable[..., AppDef],
        args: Mapping[str, Any] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        scheduler: str = "local_cwd",
        interval: float | None = None,
        timeout: float = 60,
    ) -> AppStatus | None:
        """Run a component and wait for the app's end.

        Args:
            component: The function.
            args: Its arguments, by name.
            scheduler_params: What the scheduler is created with.
            scheduler: The scheduler's name.
            interval: Seconds between two questions to the scheduler; by default its own.
            timeout: Seconds to wait at most; an app that has not ended by then is cancelled.

        Returns:
            The status then.
        """
        with get_runner(None, None, **(scheduler_params or {})) as runner:
            handle = runner.run(component(**(args or {})), scheduler)
            status = runner.wait(handle, wait_interval=interval, timeout=timeout)
            if status is not None and not status.is_terminal():
                runner.cancel(handle)
            return status
