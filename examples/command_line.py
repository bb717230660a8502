"""Read a launcher from the command line: `python command_line.py --workers-per-host 2`."""

import tyro

import phalanx


def distributed_function() -> None:
    print("Hello world!")


if __name__ == "__main__":
    launcher = tyro.cli(phalanx.Launcher)
    launcher.run(distributed_function, {})
