"""What names a process, a namespace and a start of the machine."""

import os

from phalanx._system import identity


def test_a_namespace_is_named_with_this_start_of_the_machine():
    """Otherwise two machines would seem to share one."""
    for kind in ("pid", "net"):
        boot, _, namespace = identity.space(kind).partition(" ")
        assert boot == identity.boot()
        assert namespace == identity.namespace(kind) == os.readlink(f"/proc/self/ns/{kind}")


def test_a_process_is_named_for_good():
    """This one is there; one that began at another time, or before the machine, is gone."""
    known = identity.identity()
    assert (known["boot"], known["space"]) == (identity.boot(), identity.namespace())
    assert identity.is_alive(known) and not identity.is_gone(known)
    for other in ({"start": 1}, {"boot": "another"}):
        assert identity.is_gone({**known, **other})
    assert not identity.is_local({**known, "space": "pid:[1]"})


def test_where_nothing_can_be_read_names_are_empty(monkeypatch):
    """Such as where /proc is hidden."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(identity, "boot", refuse)
    monkeypatch.setattr(identity, "namespace", refuse)
    known = identity.identity()
    assert (known["boot"], known["space"]) == ("", "")
    assert identity.is_alive(known)
