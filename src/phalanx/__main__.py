"""`python -m phalanx` is the command line."""

import sys

from phalanx.cli import main

sys.exit(main())
