"""`python -m phalanx` is the command line."""

from phalanx._cli import run

run()
