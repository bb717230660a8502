"""Log specs of torch's making: `DefaultLogsSpecs` and what packages register for `--logs-specs`.

Such an object says for each attempt into which file each local rank's streams go. It is only asked;
torch itself is not loaded here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core.rounds import Member
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._elastic.torchrun_logs import LogFiles, TorchrunLogSpec
from phalanx._logs.lines import Source
from phalanx.errors import ConfigError, PluginError

GROUP = "torchrun.logs_specs"
"""Where packages register classes of such objects."""

_BITS = {"stdout": 1, "stderr": 2}


def is_torch_logs_specs(value: object) -> bool:
    """It has what torch's agent asks of log specs."""
    return not isinstance(value, type) and callable(getattr(value, "reify", None))


@dataclass(frozen=True)
class TorchLogsSpec(TorchrunLogSpec):
    """Output as an object of torch's says."""

    specs: Any = None
    """The object."""

    def _make_files(self, member: Member) -> LogFiles | None:
        return _Reified(self.specs, self.run_id, self.role, member.workers, member.first_rank)


@dataclass(frozen=True)
class _Reified(LogFiles):
    """The files that the object names, asked once for each attempt."""

    directory = None
    specs: Any
    run_id: str
    role: str
    workers: int
    first_rank: int
    _attempts: dict[int, Any] = field(default_factory=dict)

    def redirects(self, local: int) -> int:
        dest = self._dest(0, self.first_rank)
        return sum(bit for name, bit in _BITS.items() if _files(dest, f"{name}s").get(local))

    def tee(self, local: int) -> int:
        dest = self._dest(0, self.first_rank)
        return sum(
            bit
            for name, bit in _BITS.items()
            if _files(dest, f"tee_{name}s").get(local, os.devnull) != os.devnull
        )

    def path(self, source: Source, local: int, stream: str, *, filtered: bool) -> Path:
        rank = local if source.rank is None else source.rank
        dest = self._dest(source.attempt, rank - local)
        if filtered:
            return Path(getattr(dest, f"filtered_{stream}", "") or os.devnull)
        return Path(_files(dest, f"{stream}s").get(local) or os.devnull)

    def _dest(self, attempt: int, first_rank: int) -> Any:
        if attempt not in self._attempts:
            envs = {
                local: {
                    "LOCAL_RANK": str(local),
                    "RANK": str(first_rank + local),
                    "LOCAL_WORLD_SIZE": str(self.workers),
                    "ROLE_NAME": self.role,
                    "TORCHELASTIC_RUN_ID": self.run_id,
                    "TORCHELASTIC_RESTART_COUNT": str(attempt),
                }
                for local in range(self.workers)
            }
            self._attempts[attempt] = self.specs.reify(envs)
        return self._attempts[attempt]


def _files(dest: Any, name: str) -> Mapping[int, str]:
    found: Mapping[int, str] = getattr(dest, name, None) or {}
    return found


def with_class(name: str, ours: TorchrunLogSpec) -> TorchLogsSpec:
    """Log specs of a class by the name that a package registers it under, told what ours are told.

    Raises `ConfigError` if there is none, and `PluginError` if it is of no use.
    """
    found = {plugin.name: plugin for plugin in plugins.of(GROUP)}
    if name not in found:
        choices = f"Choose one of {', '.join(found)}." if found else "No package registers any."
        hint = did_you_mean(closest(name, found), choices)
        raise ConfigError(f"--logs-specs {name}: not found under {GROUP}.{hint}")
    plugin = found[name]
    kind = plugin.load()
    if not callable(getattr(kind, "reify", None)):
        raise PluginError(plugin, f"{kind!r} has no reify()")
    specs = plugin.call(
        log_dir=ours.log_dir,
        redirects=_by_rank(ours.redirects),
        tee=_by_rank(ours.tee),
        local_ranks_filter=None if ours.local_ranks is None else set(ours.local_ranks),
    )
    own = {f.name: getattr(ours, f.name) for f in fields(ours)}
    return TorchLogsSpec(**own, specs=specs)


def _by_rank(bits: Sequence[int]) -> dict[int, Any]:
    """As torch's classes take it: its own flags, where its package is loaded by theirs."""
    flags: Any = getattr(sys.modules.get("torch.distributed.elastic.multiprocessing"), "Std", int)
    return {local: flags(bit) for local, bit in enumerate(bits)}
