"""Other launchers' names on Phalanx: programs written for them run here.

`import phalanx.compat.torchrunx as torchrunx` changes one line of a program; `python -m
phalanx.compat torchrunx -- prog.py` changes none: under it `import torchrunx` means our module, in
the program and its workers. Each of the modules has the names of one other launcher; what ours are
called is on the pages "Coming from".
"""

from phalanx._aliases import install

__all__ = ["install"]
