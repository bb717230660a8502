"""What every rendezvous handler must pass: several hosts, each on a thread, meet for real.

    from phalanx.testing import RendezvousSuite

    class TestMine(RendezvousSuite):
        def create_handler(self, run_id, host, min_hosts, max_hosts, timeout):
            return MyHandler(...)

pytest finds the tests; it is not imported here. Handlers written for torch pass it as well: errors
are known by their names.
"""

from __future__ import annotations

import secrets
import time
import unittest
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

from phalanx._rendezvous.handler_api import RendezvousInfo, problem_of, read_info
from phalanx._system import daemon_thread


class RendezvousSuite:
    """Subclass it; `create_handler` is all that must be written."""

    timeout: float = 60.0
    """Seconds that anything may take."""

    elastic: bool = True
    """Hosts may come and go; otherwise all of them meet, or nobody does."""

    def create_handler(
        self, run_id: str, host: int, min_hosts: int, max_hosts: int, timeout: float
    ) -> Any:
        """A new one, as on a host of its own; those with the same run id meet.

        `host` is 0 for the first, `timeout` the seconds for enough hosts to come.
        """
        raise NotImplementedError("say how your handler is made: create_handler")

    def create_stranger(
        self, run_id: str, host: int, min_hosts: int, max_hosts: int, timeout: float
    ) -> Any:
        """One that cannot prove that it belongs to the run; None where everybody may come."""
        return None

    # ── meeting ───────────────────────────────────────────────────────────────

    def test_it_is_a_handler_and_has_names(self) -> None:
        """That of its kind, and that of the run."""
        with _Hosts(self) as hosts:
            handler = hosts.add(1, 1)
            assert problem_of(handler) == ""
            assert handler.get_run_id() == hosts.run_id
            assert handler.get_backend()
            assert not handler.is_closed()

    def test_hosts_that_meet_agree(self) -> None:
        """Each has a rank of its own, from 0 on; all see one size and one place for the store."""
        with _Hosts(self) as hosts:
            for _ in range(3):
                hosts.add(3, 3)
            met = hosts.meet()
            assert sorted(info.rank for info in met) == [0, 1, 2]
            assert {info.world_size for info in met} == {3}
            assert len({info.bootstrap_store_info for info in met}) == 1
            hosts.expect_shared_store(met)

    def test_a_host_alone_meets_itself(self) -> None:
        """Without waiting for anybody."""
        with _Hosts(self) as hosts:
            hosts.add(1, 1)
            (info,) = hosts.meet()
            assert (info.rank, info.world_size) == (0, 1)

    def test_one_that_comes_again_is_waited_for_by_all(self) -> None:
        """The others see it waiting, come too, and nothing of the old store is seen."""
        with _Hosts(self) as hosts:
            first, second = hosts.add(2, 2), hosts.add(2, 2)
            old = hosts.meet()
            for info in old:
                if info.store is not None:
                    info.store.set(f"old-{info.rank}", "1")
            again = hosts.call(first.next_rendezvous)
            hosts.until(lambda: second.num_nodes_waiting() > 0, "one that waits")
            other = hosts.call(second.next_rendezvous)
            met = [hosts.result(again), hosts.result(other)]
            assert sorted(info.rank for info in met) == [0, 1]
            for info in met:
                if info.store is not None:
                    assert not info.store.check(["old-0"]), "the store is the old one"

    def test_too_few_hosts_are_an_error(self) -> None:
        """In time, and by its name."""
        with _Hosts(self, timeout=2.0) as hosts:
            hosts.add(2, 2)
            (waiting,) = hosts.begin()
            hosts.expect_error(waiting, "RendezvousTimeoutError")

    def test_runs_do_not_meet(self) -> None:
        """Two at a time, with names of their own."""
        with _Hosts(self) as one, _Hosts(self) as other:
            one.add(1, 1)
            other.add(1, 1)
            assert [info.world_size for info in (*one.meet(), *other.meet())] == [1, 1]

    # ── coming and going ──────────────────────────────────────────────────────

    def test_a_host_that_comes_later_is_let_in(self) -> None:
        """Those that are there see it waiting, and meet anew."""
        with _Hosts(self) as hosts:
            self._need_elastic()
            hosts.add_in_turn()

    def test_the_others_go_on_without_one_that_has_left(self) -> None:
        """Whichever it is."""
        for leaving in (0, 1):
            with _Hosts(self) as hosts:
                self._need_elastic()
                both = hosts.add_in_turn()
                both[leaving].shutdown()
                left = both[1 - leaving]
                info = hosts.result(hosts.call(left.next_rendezvous))
                assert (info.rank, info.world_size) == (0, 1), leaving

    # ── ends ──────────────────────────────────────────────────────────────────

    def test_a_closed_rendezvous_is_closed_for_all(self) -> None:
        """Nobody meets there any more, whoever has closed it."""
        with _Hosts(self) as hosts:
            first, second = hosts.add(2, 2), hosts.add(2, 2)
            hosts.meet()
            second.set_closed()
            hosts.expect_error(hosts.call(second.next_rendezvous), "RendezvousClosedError")
            hosts.expect_error(hosts.call(first.next_rendezvous), "RendezvousClosedError")
            assert first.is_closed()
            assert second.is_closed()

    def test_shutting_down_twice_is_once(self) -> None:
        """And does no harm before anybody was met."""
        with _Hosts(self) as hosts:
            handler = hosts.add(1, 1)
            handler.shutdown()
            handler.shutdown()

    # ── trust ─────────────────────────────────────────────────────────────────

    def test_one_that_cannot_prove_itself_has_no_effect(self) -> None:
        """It meets nobody, and nobody sees it waiting."""
        with _Hosts(self, timeout=3.0) as hosts:
            first = hosts.add(*((1, 2) if self.elastic else (2, 2)))
            stranger = hosts.add_stranger(*((1, 2) if self.elastic else (2, 2)))
            if stranger is None:
                raise unittest.SkipTest("everybody may come")
            if self.elastic:
                hosts.result(hosts.call(first.next_rendezvous))
                hosts.expect_error(hosts.call(stranger.next_rendezvous), "RendezvousError")
                assert first.num_nodes_waiting() == 0
                return
            honest = hosts.call(first.next_rendezvous)
            waiting = hosts.call(stranger.next_rendezvous)
            late = hosts.call(hosts.add(2, 2, number=1).next_rendezvous)  # in the stranger's place
            assert sorted(hosts.result(call).rank for call in (honest, late)) == [0, 1]
            hosts.expect_error(waiting, "RendezvousError")

    def _need_elastic(self) -> None:
        if not self.elastic:
            raise unittest.SkipTest("its hosts do not come and go")


class _Hosts:
    """The hosts of one run, for one test; all of them leave in the end."""

    def __init__(self, suite: RendezvousSuite, timeout: float = 30.0) -> None:
        self.run_id = f"suite-{secrets.token_hex(4)}"
        self._suite, self._timeout = suite, timeout
        self._handlers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in [self.call(handler.shutdown) for handler in self._handlers]:
            call.result(self._suite.timeout)

    def add(self, least: int, most: int, number: int | None = None) -> Any:
        """One more host; by default with the next number."""
        return self._added(self._suite.create_handler, least, most, number)

    def add_stranger(self, least: int, most: int) -> Any:
        """One that does not belong to the run."""
        return self._added(self._suite.create_stranger, least, most)

    def _added(
        self, create: Callable[..., Any], least: int, most: int, number: int | None = None
    ) -> Any:
        number = len(self._handlers) if number is None else number
        handler = create(self.run_id, number, least, most, self._timeout)
        if handler is not None:
            self._handlers.append(handler)
        return handler

    def add_in_turn(self) -> tuple[Any, Any]:
        """Two hosts, of which one is enough: the second is seen waiting, and they meet anew.

        Of two that come at once, one may have gone ahead before the other was there.
        """
        first = self.add(1, 2)
        assert [info.world_size for info in self.meet()] == [1]
        second = self.add(1, 2)
        late = self.call(second.next_rendezvous)
        self.until(lambda: first.num_nodes_waiting() > 0, "one that waits")
        met = [self.result(self.call(first.next_rendezvous)), self.result(late)]
        assert sorted(info.rank for info in met) == [0, 1]
        return first, second

    def begin(self) -> list[Future[Any]]:
        """Have all of them meet."""
        return [self.call(handler.next_rendezvous) for handler in self._handlers]

    def meet(self) -> list[RendezvousInfo]:
        """Likewise; gives what they have agreed on."""
        return [self.result(call) for call in self.begin()]

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Call something that may block."""
        return daemon_thread.start(function)

    def result(self, call: Future[Any]) -> RendezvousInfo:
        """What a rendezvous gave."""
        return read_info(call.result(self._suite.timeout))

    def expect_error(self, call: Future[Any], name: str) -> None:
        """A rendezvous ends with an error of this name, or of a kind of it."""
        error = call.exception(self._suite.timeout)
        names = [kind.__name__ for kind in type(error).__mro__]
        assert name in names, f"{name} is expected, not {error!r}"

    def expect_shared_store(self, met: list[RendezvousInfo]) -> None:
        """What one has set the others get, where the handler gives a store."""
        if met[0].store is None:
            return
        met[0].store.set("suite", "value")
        for info in met:
            value = info.store.get("suite")
            assert value in ("value", b"value"), value

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something."""
        limit = time.monotonic() + self._suite.timeout
        while not holds():
            assert time.monotonic() < limit, f"{what} never came"
            time.sleep(0.02)
