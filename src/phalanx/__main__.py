"""`python -m phalanx` is the command line."""

from phalanx.cli import run

run()
