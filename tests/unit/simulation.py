"""A rendezvous without hosts: the real deciders on a loop whose time is not the clock's.

Time passes when nothing else can happen. Connections are queues; what is sent takes a while, as
long as the history says, and is lost where the history has cut the network in two. A host that
crashes closes its connections, unless it is cut off: then its peers hear nothing.
"""

import asyncio
import collections
import random
import selectors

from phalanx import _wire as wire
from phalanx._core.clock import ClockOffset, Interval
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.connections.link import PeerUnreachable
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.tcp_decider import TcpDecider
from phalanx._core.rounds import Ended, Endpoint, Outcome

PORT = 29400


class _Instant(selectors.SelectSelector):
    """Does not wait: moves the loop's time on instead."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        elif not found and timeout is None:
            raise RuntimeError("nothing is left to happen")
        return found


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time is simulated."""

    def __init__(self):
        self._instant = _Instant()
        super().__init__(self._instant)

    def time(self):
        return self._instant.now


class Link:
    """One end of a connection; as `phalanx._rendezvous.tcp.connections.link.Link`."""

    def __init__(self, net, own, other):
        self.net, self.own, self.other = net, own, other
        self.peer = None
        self.agent, self.last_round = 0, 0
        self.clock = ClockOffset()
        self.clock.observe(0.0, 0.0, 0.0)
        self.last_heard = net.loop.time()
        self.silent = 0.0
        self.is_over = False
        self._heard, self._counted = 0, 0
        self._closed = False
        self._queue = collections.deque()
        self._changed = asyncio.Event()
        net.links.append(self)

    def join(self, agent, last_round):
        self.agent, self.last_round = agent, last_round

    def forget_last_round(self):
        self.last_round = 0

    async def send(self, frame):
        self.net.deliver(self, ("frame", frame))

    async def send_encoded(self, data):
        (frame,) = wire.Decoder().feed(data)
        await self.send(frame)

    def receive(self, item):
        kind, _ = item
        if self._closed:
            return
        self._heard += 1
        self.last_heard = self.net.loop.time()
        if kind != "ping":
            self._queue.append(item)
            self._changed.set()

    async def frames(self):
        while True:
            while self._queue:
                kind, frame = self._queue.popleft()
                if kind == "end":
                    return
                yield frame
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()

    def pass_time(self, seconds):
        self.silent = self.silent + seconds if self._heard == self._counted else 0.0
        self._counted = self._heard

    async def ping(self):
        self.net.deliver(self, ("ping", None))

    async def flush(self, patience):
        pass

    def close(self):
        self.is_over = True
        if not self._closed:
            self._closed = True
            self._changed.set()
            self.net.deliver(self, ("end", None))

    abort = close


class Listener:
    """As `phalanx._rendezvous.tcp.connections.listener.Listener`."""

    def __init__(self, net, host, port):
        self.net, self.host, self.port = net, host, port
        self.take = None
        net.listeners[host, port] = self

    def serve(self, take, do):
        self.take, self.do = take, do

    def share_with(self, store):
        pass

    def know(self, link):
        pass

    def close(self):
        self.net.listeners.pop((self.host, self.port), None)


class SimulatedConnector:
    """One host's access to the net; as `phalanx._rendezvous.tcp.connections.connector.Connector`."""

    def __init__(self, net, host):
        self.net, self.host = net, host

    def listen(self, port, *, anywhere):
        port = port or self.net.new_port()
        if (self.host, port) in self.net.listeners:
            raise OSError(98, "in use")
        return Listener(self.net, self.host, port)

    async def connect(self, place, patience=2.0):
        await asyncio.sleep(self.net.delay())
        if self.net.is_cut(self.host, place.address):
            await asyncio.sleep(2.0)
            raise PeerUnreachable("no answer", closed=False)
        listener = self.net.listeners.get((place.address, place.port))
        if listener is None or listener.take is None:
            raise PeerUnreachable("refused", closed=True)
        ours = Link(self.net, self.host, place.address)
        theirs = Link(self.net, place.address, self.host)
        ours.peer, theirs.peer = theirs, ours
        listener.do(_take(listener.take, theirs))
        return ours


async def _take(take, link):
    await take(link)


class Net:
    """What is between the hosts."""

    def __init__(self, loop, seed):
        self.loop = loop
        self.random = random.Random(seed)
        self.listeners = {}
        self.links = []
        self.sides = {}
        self._ports = 40000
        self._due = {}

    def new_port(self):
        self._ports += 1
        return self._ports

    def delay(self):
        return self.random.choice((0.0, 0.001, 0.01, 0.05))

    def is_cut(self, one, other):
        return self.sides.get(one, 0) != self.sides.get(other, 0)

    def deliver(self, link, item):
        """Later, but in order; a cut drops what is on its way, and all that follows on it."""
        peer = link.peer
        due = max(self._due.get(id(link), 0.0) + 1e-6, self.loop.time() + self.delay())
        self._due[id(link)] = due

        def arrive():
            if not self.is_cut(link.own, link.other):
                peer.receive(item)

        self.loop.call_at(due, arrive)


class SimulatedHost:
    """A host that does what it is told, and can be crashed."""

    def __init__(self, net, number, least, most, max_restarts=3):
        self.net = net
        self.name = f"h{number}"
        self.agent = net.new_port()
        self.seen = []
        """The rounds that began here."""
        self.verdict = None
        self.error = None
        self.is_up = True
        self.current = None
        settings = Settings(
            join_timeout=60.0,
            last_call_timeout=1.0,
            host_timeout=5.0,
            is_host=number == 0,
            local_addr=self.name,
        )
        policy = p.CoordinatorSettings(
            hosts=(),
            start_timeout=60.0,
            stop_grace=2.0,
            failure_window=0.1,
            min_hosts=least,
            max_hosts=most,
            open=True,
            last_call=1.0,
            max_restarts=max_restarts,
            quorum=True,
        )
        host = TcpHost(self.agent, self.name, 1, "run", Endpoint("h0", PORT), policy, settings)
        self.decider = TcpDecider(host, net.loop.time, SimulatedConnector(net, self.name))
        self.tasks = []

    async def start(self):
        await self.decider.start(self._act, self._failed)
        self._later(lambda: self.decider.tell(p.JoinedEvent(self.agent, self._place())))
        self.tasks.append(asyncio.ensure_future(self._tick()))

    def _place(self):
        return Endpoint(self.name, self.net.new_port())

    async def _tick(self):
        while self.is_up and self.verdict is None:
            self.decider.tell(p.TickEvent())
            await asyncio.sleep(0.1)

    def _later(self, call):
        def act():
            if self.is_up and self.verdict is None and self.error is None:
                call()

        self.net.loop.call_later(self.net.delay(), act)

    def _failed(self, error):
        self.error = error

    def _act(self, action):
        match action:
            case p.BeginRoundAction(round_):
                assert self.verdict is None, f"{self.name} begins {round_} after its end"
                self.seen.append(round_)
                self.current = round_.number
                self._later(lambda: self._run(round_.number))
            case p.HaltRoundAction(number, _):
                self._later(lambda: self._clear(number))
            case p.FinishAction(verdict):
                self.verdict = verdict
                self.current = None

    def _run(self, number):
        if self.current == number:
            self.decider.tell(p.WorkersStartedEvent(self.agent, number))

    def _clear(self, number):
        if self.current == number:
            self.current = None
            self.decider.tell(p.RoundClearedEvent(self.agent, number, self._place()))

    def fail(self):
        """A worker here fails."""
        if self.is_up and self.current is not None and self.decider.round is not None:
            now = self.net.loop.time()
            rank = self.decider.round.member(self.agent).first_rank
            outcome = Outcome(rank, Ended.EXITED, now, code=1)
            self.decider.tell(
                p.WorkerEndedEvent(self.agent, self.current, outcome, Interval(now, now))
            )

    def cancel(self):
        """Somebody wants the end here."""
        if self.is_in:
            self.decider.tell(p.CancelEvent())

    def crash(self):
        """End at once; peers are told by the closed connections, if they can be."""
        if not self.is_up:
            return
        self.is_up = False
        self.current = None
        self.decider._background.cancel()
        for task in self.tasks:
            task.cancel()
        for link in self.net.links:
            if link.own == self.name:
                link.close()
        for key in [key for key in self.net.listeners if key[0] == self.name]:
            del self.net.listeners[key]

    @property
    def is_in(self):
        """It takes part, or would."""
        return self.is_up and self.verdict is None and self.error is None


async def play(history, count, least, most, seed, *, failure_window=40.0):
    """Run a history of (seconds, what, host) on so many hosts; gives the hosts at the end."""
    loop = asyncio.get_running_loop()
    net = Net(loop, seed)
    hosts = [SimulatedHost(net, number, least, most) for number in range(count)]
    for host in hosts:
        await host.start()
    for seconds, what, target in history:
        await asyncio.sleep(seconds)
        match what:
            case "crash":
                hosts[target % count].crash()
            case "fail":
                hosts[target % count].fail()
            case "cancel":
                hosts[target % count].cancel()
            case "cut":
                for number, host in enumerate(hosts):
                    net.sides[host.name] = int(bool(target >> number & 1))
            case "mend":
                net.sides.clear()
            case "return" if not hosts[target % count].is_up:
                hosts[target % count] = SimulatedHost(net, target % count, least, most)
                await hosts[target % count].start()
    await asyncio.sleep(failure_window)
    for host in hosts:
        host.tasks and [task.cancel() for task in host.tasks]
        host.decider._background.cancel()
    await asyncio.sleep(0)
    return hosts


def simulate(history, count, least, most, seed, **options):
    """As `play`, in a world of its own."""
    loop = Loop()
    try:
        return loop.run_until_complete(play(history, count, least, most, seed, **options))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
