"""runc, for machines whose root may not raise limits (no CAP_SYS_RESOURCE).

dockerd asks for what they refuse, in privileged containers above all; it is lowered to what can be
had in the container's description, before runc reads it. Started for every container: keep it quick.
"""

import json
import os
import resource
import sys

_LIMITS = {"RLIMIT_NOFILE": resource.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": resource.RLIMIT_MEMLOCK}


def _lower(path):
    with open(path) as file:
        description = json.load(file)
    process = description["process"]
    process["oomScoreAdj"] = max(process.get("oomScoreAdj") or 0, 0)
    for names in (process.get("capabilities") or {}).values():
        if "CAP_SYS_RESOURCE" in names:
            names.remove("CAP_SYS_RESOURCE")
    for limit in process.get("rlimits") or ():
        if limit["type"] in _LIMITS:
            most = resource.getrlimit(_LIMITS[limit["type"]])[1]
            if most != resource.RLIM_INFINITY:
                limit["hard"] = min(limit["hard"], most)
                limit["soft"] = min(limit["soft"], most)
    with open(f"{path}.new", "w") as file:
        json.dump(description, file)
    os.rename(f"{path}.new", path)


words = sys.argv[1:]
if "create" in words or "run" in words:
    place = words[words.index("--bundle") + 1] if "--bundle" in words else "."
    _lower(os.path.join(place, "config.json"))
os.execvp("runc", ["runc", *words])
