"""Bundles of a placement group, and which resources are missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from phalanx._schedulers.authoring import UNSAID_MEMORY
from phalanx._specs import Resource

Bundle = Mapping[str, float]
_MEMORY = "memory"
_LEAST = {"CPU": 0.001}
"""Ray takes no empty bundle."""


def bundle_of(resource: Resource, more: Bundle) -> dict[str, float]:
    """What a replica needs, as Ray counts it."""
    found = {"CPU": float(max(0, resource.cpu)), "GPU": float(max(0, resource.gpu))}
    if resource.memMB > 0 and resource.memMB != UNSAID_MEMORY:
        found[_MEMORY] = float(resource.memMB << 20)
    found |= {name: float(count) for name, count in resource.devices.items()}
    return {name: n for name, n in {**found, **more}.items() if n > 0} or dict(_LEAST)


def why_waiting(bundles: Sequence[Bundle], nodes: Iterable[Bundle], free: Bundle) -> str:
    """Which resources bundles wait for, by what each node has and what is free of all."""
    known = list(nodes)
    for bundle in bundles:
        if not any(_fits(bundle, node) for node in known):
            largest = {name: max((n.get(name, 0) for n in known), default=0) for name in bundle}
            return f"no node has {shown(bundle)} (the largest: {shown(largest)})"
    wanted = _sum(bundles)
    total = {name: sum(node.get(name, 0) for node in known) for name in wanted}
    for have, where in ((total, "the cluster has"), (free, "free:")):
        missing = {name: number for name, number in wanted.items() if have.get(name, 0) < number}
        if missing:
            there = {name: have.get(name, 0) for name in missing}
            return f"needs {shown(missing)}; {where} {shown(there)}"
    return f"needs {shown(wanted)}"


def strictly_placed(bundles: Sequence[Bundle], nodes: Iterable[Bundle], strategy: str) -> str:
    """Why a strict strategy cannot place all of a group's bundles on such nodes, even if all were
    free; empty if it can, or if one bundle alone is too large.
    """
    known = list(nodes)
    if not all(any(_fits(bundle, node) for node in known) for bundle in bundles):
        return ""
    if strategy == "STRICT_PACK":
        whole = _sum(bundles)
        if any(_fits(whole, node) for node in known):
            return ""
        largest = {name: max(node.get(name, 0) for node in known) for name in whole}
        return f"no node has {shown(whole)}, for {strategy} (the largest: {shown(largest)})"
    if strategy == "STRICT_SPREAD" and (placed := _count_spread(bundles, known)) < len(bundles):
        return (
            f"needs {len(bundles)} nodes, for {strategy}; the cluster has {placed} "
            "that are large enough"
        )
    return ""


def _count_spread(bundles: Sequence[Bundle], nodes: Sequence[Bundle]) -> int:
    """How many bundles have a node to themselves at best: a matching, by augmenting paths."""
    holders: dict[int, int] = {}

    def assign(bundle: int, seen: set[int]) -> bool:
        for index, node in enumerate(nodes):
            if index not in seen and _fits(bundles[bundle], node):
                seen.add(index)
                if index not in holders or assign(holders[index], seen):
                    holders[index] = bundle
                    return True
        return False

    return sum(assign(number, set()) for number in range(len(bundles)))


def _sum(bundles: Iterable[Bundle]) -> dict[str, float]:
    wanted: dict[str, float] = {}
    for bundle in bundles:
        for name, number in bundle.items():
            wanted[name] = wanted.get(name, 0.0) + number
    return wanted


def _fits(bundle: Bundle, node: Bundle) -> bool:
    return all(node.get(name, 0) >= number for name, number in bundle.items())


def shown(bundle: Bundle) -> str:
    """As people write it: `4 CPU, 1 GPU, 2.0 GiB memory`."""
    return ", ".join(
        f"{number / (1 << 30):.1f} GiB {name}" if name == _MEMORY else f"{number:g} {name}"
        for name, number in bundle.items()
    )
