"""What an unknown name was meant to be. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like this one; None if none is by at least `cutoff` of 1."""
    import difflib  # only mistakes need it

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(meant: str | None, otherwise: str = "", *, quoted: bool = True) -> str:
    """The hint to put behind a sentence, with a space before it; `otherwise` if nothing is meant.

    Names are `quoted`; what is typed as it stands, such as a flag, is not.
    """
    hint = otherwise
    if meant is not None:
        hint = f"Did you mean {meant!r}?" if quoted else f"Did you mean {meant}?"
    return f" {hint}" if hint else ""
