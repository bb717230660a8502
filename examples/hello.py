"""Launch a function on four workers, without torch."""

import os

import phalanx


def hello(name: str) -> str:
    print(f"hello {name} from rank {os.environ['RANK']}")
    return f"{name} {os.environ['RANK']}"


if __name__ == "__main__":
    result = phalanx.launch(hello, {"name": "world"}, workers_per_host=4)
    print(list(result))
