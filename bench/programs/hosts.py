"""`hosts.py SSH_CONFIG WHAT HOST...`: one measurement on other hosts; prints what it has found."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import phalanx
from phalanx.errors import PhalanxError


def reduce() -> None:
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()


def fail() -> None:
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        time.sleep(0.5)
        raise ValueError(str(time.time()))
    time.sleep(20)


def main(config: str, what: str, names: list[str]) -> None:
    launcher = phalanx.Launcher(hostnames=names, workers_per_host=1, ssh_config_file=config)
    match what:
        case "plain":
            launcher.run(os.getpid)
        case "reduce":
            launcher.run(reduce)
        case "warm":
            runs = []
            with launcher:
                launcher.run(reduce)
                for _ in range(9):
                    began = time.perf_counter()
                    launcher.run(reduce)
                    runs.append(time.perf_counter() - began)
            print(json.dumps({"runs": runs}))
        case "raise":
            runs = []
            with launcher:
                for _ in range(7):
                    try:
                        launcher.run(fail)
                    except ValueError as error:
                        runs.append(time.time() - float(str(error)))
            print(json.dumps({"runs": runs}))
        case "ship":
            print(json.dumps(ship(launcher)))
        case "many":
            many = phalanx.Launcher(hostnames=["localhost"] * int(names[0]), workers_per_host=1)
            app = many.start(os.getpid)
            app.result()
            print(json.dumps(app.status().phases))
        case _:
            raise PhalanxError(what)


def ship(launcher: phalanx.Launcher) -> dict[str, float]:
    found = {}
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for i in range(2000):
            path = Path(f"d{i % 40}/f{i}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(os.urandom(5000))
        for name in ("none of them", "first", "again", "one changed"):
            if name == "one changed":
                Path("d1/f1.py").write_bytes(os.urandom(5000))
            launcher.workspace = None if name == "none of them" else place
            began = time.perf_counter()
            launcher.run(os.getpid)
            found[name] = time.perf_counter() - began
        os.chdir("/")
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
