"""`phalanx describe`: what an app was made from."""

from __future__ import annotations

import sys

from phalanx._cli import parsing
from phalanx._cli.app_argument import find_app
from phalanx._runner.runner import get_runner
from phalanx._specs import to_dict
from phalanx.errors import PhalanxError


def main(arguments: list[str]) -> int:
    """Print an app's definition, as JSON."""
    parser = parsing.make("describe", "Show an app's definition, as JSON.")
    parsing.add_app(parser)
    parser.add_argument("--json", action="store_true", help="output JSON (the default)")
    options = parser.parse_args(arguments)
    try:
        found = find_app(options.app)
        with get_runner() as runner:
            app = None if found.is_launch else runner.describe(found.handle)
    except (LookupError, PhalanxError) as error:
        print(f"phalanx describe: {error}", file=sys.stderr)
        return 1
    if found.is_launch and found.record is not None:
        parsing.print_json(found.record.facts)
        return 0
    if app is None:
        print(
            f"phalanx describe: no such app: {found.handle} (not submitted from here)",
            file=sys.stderr,
        )
        return 1
    parsing.print_json(to_dict(app))
    return 0
