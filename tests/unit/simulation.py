"""A rendezvous without hosts: the real deciders on a loop whose time is not the clock's.

Time passes when nothing else can happen. Connections are queues; what is sent takes a while, as
long as the history says, and is lost where the history has cut the network in two. A host that
crashes closes its connections, unless it is cut off: then its peers hear nothing.
"""

import asyncio
import collections
import functools
import random
import selectors

from phalanx import _wire as wire
from phalanx._core.clock import ClockOffset, Interval
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.etcd.election import Election
from phalanx._rendezvous.etcd.proofs import ValueProof
from phalanx._rendezvous.etcd.keys import KeyValue, EtcdUnreachable
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.connections.link import PeerUnreachable
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.tcp_decider import TcpDecider
from phalanx._core.rounds import Ended, Endpoint, Outcome

PORT = 29400
ETCD = "etcd"
"""The name of etcd among the hosts, for cuts."""


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
        self.is_broken = False
        """Something was lost on its way: nothing comes after it."""
        self.sent = 0
        """The bytes of what was written down for many."""
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

    def post_encoded(self, *frames):
        for data in frames:
            self.sent += len(data)
            (frame,) = wire.Decoder().feed(data)
            self.net.deliver(self, ("frame", frame))

    def receive(self, item):
        kind, _ = item
        if self._closed:
            return
        self._heard += 1
        self.last_heard = self.net.loop.time()
        if kind == "ping":
            self.net.deliver(self, ("pong", None))
        elif kind != "pong":
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
        if self.own in self.net.paused:
            return  # it does not count time in which it was stopped
        self.silent = self.silent + seconds if self._heard == self._counted else 0.0
        self._counted = self._heard

    def post_ping(self, ping):
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

    def __init__(self, net, host, port, key):
        self.net, self.host, self.port, self.key = net, host, port, key
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

    def __init__(self, net, host, key):
        self.net, self.host, self.key = net, host, key

    def listen(self, port, *, anywhere, is_endpoint=False):
        port = port or self.net.new_port()
        if (self.host, port) in self.net.listeners:
            raise OSError(98, "in use")
        return Listener(self.net, self.host, port, self.key)

    async def connect(self, place, patience=2.0):
        await asyncio.sleep(self.net.delay())
        await self.net.wait_until_it_runs(self.host)
        if self.net.is_cut(self.host, place.address):
            await asyncio.sleep(2.0)
            raise PeerUnreachable("no answer", closed=False)
        listener = self.net.listeners.get((place.address, place.port))
        if listener is None or listener.take is None:
            raise PeerUnreachable("refused", closed=True)
        if listener.key != self.key:
            raise PeerUnreachable("not trusted", closed=False, stranger=True, greeted=True)
        ours = Link(self.net, self.host, place.address)
        theirs = Link(self.net, place.address, self.host)
        ours.peer, theirs.peer = theirs, ours
        listener.do(_take(listener.take, theirs))
        return ours


async def _take(take, link):
    await take(link)


class SimulatedEtcd:
    """The keys, leases and revisions of etcd, all of whose members are one."""

    def __init__(self, loop):
        self.loop = loop
        self.is_up = True
        self.keys = {}
        self.revision = 0
        self.losses = []
        """(beginning of a key, whether it is done all the same) of writes that go unanswered."""
        self._leases = {}
        self._last_lease = 0

    def restart(self):
        """As etcd has it, every lease begins anew then."""
        self.is_up = True
        for lease in self._leases.values():
            lease[1] = self.loop.time() + lease[0]

    def wipe(self):
        """Come back without what was there."""
        self.is_up = True
        self.keys, self._leases, self.revision = {}, {}, 0

    def expire(self):
        for number, (_, until) in list(self._leases.items()):
            if until < self.loop.time():
                self.revoke(number)

    def read(self, key):
        value, revision, _ = self.keys.get(key, (None, 0, 0))
        return KeyValue(value, revision) if revision else None

    def write(self, values, at, lease):
        if any(self.keys.get(key, (None, 0, 0))[1] != revision for key, revision in at.items()):
            return 0
        if lease and lease not in self._leases:
            return 0
        self.revision += 1
        for key, value in values.items():
            if value is None:
                self.keys.pop(key, None)
            else:
                self.keys[key] = (value, self.revision, lease)
        return self.revision

    def grant(self, seconds):
        self._last_lease += 1
        self._leases[self._last_lease] = [seconds, self.loop.time() + seconds]
        return self._last_lease

    def keep_alive(self, lease):
        if lease in self._leases:
            self._leases[lease][1] = self.loop.time() + self._leases[lease][0]
        return lease in self._leases

    def revoke(self, lease):
        self._leases.pop(lease, None)
        for key in [key for key, entry in self.keys.items() if entry[2] == lease]:
            del self.keys[key]
            self.revision += 1


class SimulatedKeys:
    """One host's access to it; as `phalanx._rendezvous.etcd.keys.ElectionKeys`."""

    def __init__(self, net, host):
        self.net, self.host = net, host

    async def _ask(self, method, *arguments):
        await self._travel()
        self.net.etcd.expire()
        lost = self._loss(*arguments) if method == "write" else None
        if lost is not None and not lost[1]:
            raise EtcdUnreachable("no answer")
        answer = getattr(self.net.etcd, method)(*arguments)
        await self._travel()  # what was done may be all the same, though nobody hears of it
        if lost is not None:
            raise EtcdUnreachable("no answer")
        return answer

    def _loss(self, values, *_):
        losses = self.net.etcd.losses
        for loss in losses:
            if any(key.startswith(loss[0]) for key in values):
                losses.remove(loss)
                return loss
        return None

    async def _travel(self):
        await asyncio.sleep(self.net.delay())
        await self.net.wait_until_it_runs(self.host)
        if not self.net.etcd.is_up or self.net.is_cut(self.host, ETCD):
            await asyncio.sleep(1.0)
            raise EtcdUnreachable("no answer")

    async def read(self, key):
        return await self._ask("read", key)

    async def names(self, prefix):
        await self._ask("expire")
        keys = self.net.etcd.keys
        return frozenset(key.removeprefix(prefix) for key in keys if key.startswith(prefix))

    async def write(self, values, at, lease=0):
        return await self._ask("write", values, at, lease)

    async def grant(self, seconds):
        return await self._ask("grant", seconds)

    async def keep_alive(self, lease):
        return await self._ask("keep_alive", lease)

    async def revoke(self, lease):
        return await self._ask("revoke", lease)

    async def wait_change(self, key, seconds):
        limit, before = self.net.loop.time() + seconds, self.net.etcd.keys.get(key)
        while self.net.etcd.keys.get(key) == before and self.net.loop.time() < limit:
            await asyncio.sleep(0.1)

    async def close(self):
        pass


class Net:
    """What is between the hosts."""

    def __init__(self, loop, seed):
        self.loop = loop
        self.random = random.Random(seed)
        self.listeners = {}
        self.links = []
        self.sides = {}
        self.paused = {}
        """What comes for hosts that are stopped, and what is on its way from them."""
        self.etcd = SimulatedEtcd(loop)
        self._ports = 40000
        self._due = {}

    def new_port(self):
        self._ports += 1
        return self._ports

    def delay(self):
        return self.random.choice((0.0, 0.001, 0.01, 0.05))

    def is_cut(self, one, other):
        sides = {self.sides.get(one, 0), self.sides.get(other, 0)}
        return len(sides - {None}) > 1  # None is reached from both

    def resume(self, name):
        """A host that was stopped goes on; it finds all that has come meanwhile."""
        for arrive in self.paused.pop(name, ()):
            arrive()

    async def wait_until_it_runs(self, name):
        while name in self.paused:
            await asyncio.sleep(0.1)

    def deliver(self, link, item):
        """Later, but in order; a cut drops what is on its way, and all that follows on it."""
        peer = link.peer
        due = max(self._due.get(id(link), 0.0) + 1e-6, self.loop.time() + self.delay())
        self._due[id(link)] = due

        def arrive():
            for name in (link.own, link.other):
                if name in self.paused:
                    self.paused[name].append(arrive)
                    return
            link.is_broken |= self.is_cut(link.own, link.other)
            if not link.is_broken:
                peer.receive(item)

        self.loop.call_at(due, arrive)


class SimulatedHost:
    """A host that does what it is told, and can be crashed."""

    def __init__(
        self,
        net,
        number,
        least,
        most,
        max_restarts=3,
        *,
        rendezvous="tcp",
        strangers=(),
        host_failures=0,
    ):
        self.net = net
        self.name = f"h{number}"
        self.agent = net.new_port()
        self.seen = []
        """The rounds that began here."""
        self.began_at = 0.0
        """When the last of them did."""
        self.verdict = None
        self.error = None
        self.is_up = True
        self.has_agent = True
        self.vain = []
        """The rounds that began here while there was no agent."""
        self.current = None
        settings = Settings(
            join_timeout=60.0,
            last_call_timeout=1.0,
            host_timeout=5.0,
            is_host=number == 0,
            local_addr=self.name,
        )
        coordinator_settings = p.CoordinatorSettings(
            hosts=(),
            start_timeout=60.0,
            stop_grace=2.0,
            failure_window=0.1,
            min_hosts=least,
            max_hosts=most,
            open=True,
            last_call=1.0,
            max_restarts=max_restarts,
            host_failures=host_failures,
            quorum=True,
        )
        host = TcpHost(
            self.agent, self.name, 1, "run", Endpoint("h0", PORT), coordinator_settings, settings
        )
        election = None
        key = b"another" if number in strangers else b"key"
        if rendezvous == "etcd":
            keys = SimulatedKeys(net, self.name)
            proof = ValueProof(key, "run")
            election = Election(keys, proof, self.agent, 5.0, 20.0, 60.0, net.loop.time)
        connector = SimulatedConnector(net, self.name, key)
        self.decider = TcpDecider(host, net.loop.time, connector, election)
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

    def _later(self, call, seconds=0.0):
        def act():
            if self.is_up and self.verdict is None and self.error is None:
                call()

        self.net.loop.call_later(seconds + self.net.delay(), act)

    def _failed(self, error):
        if self.error is None:
            self.error = error
            self.current = None
            self.tasks.append(asyncio.ensure_future(self.decider.close()))

    def _act(self, action):
        match action:
            case p.BeginRoundAction(round_):
                assert self.verdict is None, f"{self.name} begins {round_} after its end"
                self.seen.append(round_)
                self.began_at = self.net.loop.time()
                if not self.has_agent:
                    self.vain.append(round_)
                    return
                self.current = round_.number
                self._later(lambda: self._run(round_.number))
            case p.HaltRoundAction(number, grace):
                # Workers may take all of the grace to end.
                seconds = self.net.random.choice((0.0, self.net.random.uniform(0.0, grace)))
                self._later(lambda: self._clear(number), seconds)
            case p.FinishAction(verdict):
                self.verdict = verdict
                self.current = None
                self.tasks.append(asyncio.ensure_future(self.decider.close()))

    def _run(self, number):
        if self.current == number:
            self.decider.tell(p.WorkersStartedEvent(self.agent, number))

    def _clear(self, number):
        if self.current == number:
            self.current = None
            if self.decider.round_of(self.agent) != number:
                return  # as a session takes it: the agent speaks of a round that it is not in
            self.decider.tell(p.RoundClearedEvent(self.agent, number, self._place()))

    def fail(self):
        """A worker here fails."""
        self._end_worker(Ended.EXITED, code=1)

    def succeed(self):
        """The worker here returns; with it nothing of the round is left."""
        self._end_worker(Ended.RETURNED)
        number = self.current
        self._later(lambda: self._clear(number))

    def _end_worker(self, kind, **how):
        if self.is_up and self.current is not None and self.decider.round is not None:
            now = self.net.loop.time()
            rank = self.decider.round.member(self.agent).first_rank
            outcome = Outcome(rank, kind, now, **how)
            self.decider.tell(
                p.WorkerEndedEvent(self.agent, self.current, outcome, Interval(now, now))
            )

    def lose_agent(self, seconds):
        """The agent here is killed; after a while there is another."""
        if not self.is_in or not self.has_agent:
            return
        now = self.net.loop.time()
        self.has_agent, self.current = False, None
        self.decider.tell(p.AgentGoneEvent(self.agent, "it was killed", Interval(now, now)))

        def come_back():
            self.has_agent = True
            if self.is_in:
                self.decider.tell(p.JoinedEvent(self.agent, self._place()))

        self.net.loop.call_later(seconds, come_back)

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


async def play(history, count, least, most, seed, *, failure_window=40.0, **options):
    """Run a history of (seconds, what, host) on so many hosts; gives the hosts at the end.

    The hosts of a cut are bits, and the next one is etcd; "divide" leaves etcd to both sides.
    Options are those of hosts; of these, `strangers` have another token.
    """
    loop = asyncio.get_running_loop()
    net = Net(loop, seed)
    make = functools.partial(SimulatedHost, net, least=least, most=most, **options)
    hosts = [make(number) for number in range(count)]
    for host in hosts:
        await host.start()
    for seconds, what, target in history:
        await asyncio.sleep(seconds)
        match what:
            case "crash":
                hosts[target % count].crash()
            case "fail":
                hosts[target % count].fail()
            case "lose agent":
                hosts[target % count].lose_agent(20.0)
            case "pause":
                net.paused.setdefault(hosts[target % count].name, [])
            case "resume":
                net.resume(hosts[target % count].name)
            case "succeed":
                hosts[target % count].succeed()
            case "cancel":
                hosts[target % count].cancel()
            case "cut" | "divide":
                for number, host in enumerate(hosts):
                    net.sides[host.name] = target >> number & 1
                net.sides[ETCD] = None if what == "divide" else target >> count & 1
            case "mend":
                net.sides.clear()
            case "etcd down":
                net.etcd.is_up = False
            case "etcd up":
                net.etcd.restart()
            case "etcd empty":
                net.etcd.wipe()
            case "etcd is told":
                net.etcd.write(target, {}, 0)
            case "etcd loses":
                net.etcd.losses.append(target)
            case "lease ends":
                net.etcd.revoke(net.etcd.keys[target][2])
            case "return" if not hosts[target % count].is_up:
                hosts[target % count] = make(target % count)
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
