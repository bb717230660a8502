"""Kubernetes' programs, compiled once from Debian's source package, and kept.

`python -m tests.cluster.kubernetes_build` does it (some ten minutes on two cores) unless it is done.
The packages of Debian have the client only. Newer releases of Debian have a Kubernetes whose nodes no
longer run containers by Docker: this one is of Debian 12.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.machine import CACHE

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
TOOLS = ("go", "apt-get", "dpkg-source")

_RECIPE = 1
"""Counts ways to compile: what was made in another one is not used."""
_COMPILED = "compiled"
"""What the compiler keeps: one that was interrupted goes on from there."""
_ROOT = "k8s.io/kubernetes"
_DEBIAN = "bookworm"


def place():
    """The directory of the programs, which may not be there."""
    return CACHE / f"kubernetes-{VERSION}-{_RECIPE}"


def is_built():
    return place().is_dir()


def why_not():
    """The reason why they cannot be compiled here, or None."""
    if f"VERSION_CODENAME={_DEBIAN}" not in Path("/etc/os-release").read_text().splitlines():
        return f"Kubernetes {VERSION} is compiled from the source package of Debian {_DEBIAN}"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"{', '.join(missing)} not installed" if missing else None


def build():
    """Compile them; at once if that is done. Others that want it wait."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "kubernetes.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say("another process compiles it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_built():
            work = Path(f"{place()}.work")
            _remove(work, but=_COMPILED)
            work.mkdir(exist_ok=True)
            _compile(work).rename(place())
            _remove(work)
    return place()


def _compile(work):
    source = work / "gopath/src" / _ROOT
    source.parent.mkdir(parents=True)
    _say("fetching the source package")
    _fetch(work, source)
    go = {
        **os.environ,
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / _COMPILED),
        "GOTMPDIR": str(work),
        "GOFLAGS": "",
        "GO111MODULE": "off",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
    }
    _say("generating the description of the API, which the package does not have")
    _generate(work, source, go)
    _say(f"compiling {', '.join(PROGRAMS)}: some minutes")
    done = work / "programs"
    major, minor, _ = VERSION.split(".")
    facts = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    packages = [
        f"{above}k8s.io/{package}"
        for above in ("", f"{_ROOT}/vendor/")
        for package in ("component-base/version", "client-go/pkg/version")
    ]
    flags = [f"-X {package}.{key}={value}" for package in packages for key, value in facts.items()]
    _run(
        *("go", "build", "-trimpath", "-ldflags", f"-s -w {' '.join(flags)}", "-o", f"{done}/"),
        *(f"{_ROOT}/cmd/{program}" for program in PROGRAMS),
        cwd=source,
        env=go,
    )
    return done


def _fetch(work, source):
    """Have the package's files, by lists of apt's own that know of sources."""
    targets = _run(
        *("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"),
        *("Created-By: Packages", "Component: main"),
    )
    lines = {f"deb-src {line} main" for line in targets.splitlines() if _DEBIAN in line}
    (work / "sources.list").write_text("\n".join(sorted(lines)) + "\n")
    (work / "lists/partial").mkdir(parents=True)
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    apt = (
        "apt-get",
        "-qq",
        "-oAcquire::Retries=3",
        *(f"-o{key}={value}" for key, value in options.items()),
    )
    _run(*apt, "update")
    _run(*apt, "source", "--download-only", "kubernetes", cwd=work)
    [description] = work.glob("kubernetes_*.dsc")
    if VERSION not in description.name:
        raise RuntimeError(f"{description.name} is not Kubernetes {VERSION}")
    _run("dpkg-source", "--no-check", "-x", description, source)


def _generate(work, source, go):
    """Write what openapi-gen makes of all packages that are marked for it."""
    program = work / "openapi-gen"
    generator = f"{_ROOT}/vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    _run("go", "build", "-o", program, generator, cwd=source, env=go)
    left_out = ("sample-apiserver", "sample-controller", "code-generator")
    marked = set()
    for above in ("pkg", "cmd", "staging/src/k8s.io"):
        for file in (source / above).rglob("*.go"):
            path = str(file.parent.relative_to(source))
            if file.name.startswith("zz_generated") or file.name.endswith("_test.go"):
                continue
            if any(name in path for name in left_out) or not _is_marked(file):
                continue
            marked.add(f"{_ROOT}/{path.replace('staging/src/', 'vendor/')}")
    _run(
        *(program, "--input-dirs", ",".join(sorted(marked))),
        *("--output-package", f"{_ROOT}/pkg/generated/openapi"),
        *("--output-file-base", "zz_generated.openapi", "--report-filename", work / "violations"),
        *("--go-header-file", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
        cwd=source,
        env=go,
    )


def _is_marked(file):
    lines = file.read_bytes().splitlines()
    return any(line.removeprefix(b"//").strip().startswith(b"+k8s:openapi-gen=") for line in lines)


def _run(*command, **kwargs):
    """Run it behind everything else that the machine does; gives what it printed."""
    done = subprocess.run(
        ["nice", "-n", "10", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


def _remove(folder, but=None):
    """Remove a directory, or what it has but for one thing."""
    for entry in folder.glob("*"):
        if entry.name != but:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if but is None:
        folder.rmdir()


def _say(what):
    print(f"Kubernetes {VERSION}: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if is_built():
        sys.exit()
    if reason := why_not():
        _say(f"cannot be compiled here ({reason}); the tests that need it are skipped")
        sys.exit()
    try:
        build()
    except (OSError, RuntimeError) as error:
        _say(f"not compiled, and the tests that need it are skipped: {error}")
