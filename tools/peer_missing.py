"""Stand-ins for what a peer has and we do not: a test that uses one is told so."""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN204

import abc


class Absent(AttributeError):
    """Something of the peer's that we do not have."""


class _Missing(abc.ABCMeta):
    def __call__(cls, *args, **kwargs):
        raise Absent(f"{cls.__name__} is not there")

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise Absent(f"{cls.__name__} is not there")


def missing(name):
    """Something to import, which cannot be used."""
    return _Missing(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})
