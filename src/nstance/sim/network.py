"""Links between simulated servers: in order, with a delay, and cuttable. The link of a process that was killed is reset and
its port refuses others; those of a stopped process, or of a host that lost its power, only fall silent. A network that
rejects does to one side what a kill would do, although the other side lives."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from nstance.server.election import peers
from nstance.sim.loop import Machine, Process

DELAY = 0.001
DIAL_TIMEOUT = 1.0


class SimLink:
    def __init__(self, network: "Network", here: Machine, there: Machine, fingerprint: str) -> None:
        self.server = there.name
        self.fingerprint = fingerprint
        self._network = network
        self._here, self._there = here, there
        self._process = here.process
        self._inbox: asyncio.Queue[peers.Message | None] = asyncio.Queue()
        self._closed = False
        self.other: SimLink | None = None
        network.links.append(self)

    @property
    def here(self) -> Machine:
        return self._here

    @property
    def there(self) -> Machine:
        return self._there

    def reset(self) -> None:
        """What was sent to the other side came back as a reset. Nothing is said to the program there."""
        if not self._closed:
            self._inbox.put_nowait(None)

    def send(self, message: peers.Message) -> None:
        other = self.other
        if self._closed or other is None:
            return
        asyncio.get_running_loop().call_later(DELAY, self._deliver, other, message, context=contextvars.Context())

    def _deliver(self, other: "SimLink", message: peers.Message | None) -> None:
        if self._network.is_cut(self._here, self._there):
            return
        if self._network.is_rejected(self._here, self._there):
            self.reset()
            return
        if other._process is not other._here.process:
            if other._here.name not in self._network.dark:
                self.reset()  # nobody is there any more
            return
        if other._closed:
            if not self._network.is_rejected(self._there, self._here):
                self.reset()
            return
        other._inbox.put_nowait(message)

    async def receive(self) -> peers.Message:
        message = None if self._closed else await self._inbox.get()
        if message is None:
            self._closed = True
            raise peers.LinkClosedError("the link is gone")
        return message

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbox.put_nowait(None)
            if self.other is not None:
                asyncio.get_running_loop().call_later(
                    DELAY, self._deliver, self.other, None, context=contextvars.Context()
                )


Accept = Callable[[peers.Link], Awaitable[None]]


class Network:
    def __init__(self) -> None:
        self._listening: dict[str, tuple[Machine, Process | None, str, Accept]] = {}
        self.links: list[SimLink] = []
        self.cut: set[frozenset[str]] = set()
        self.rejected: set[tuple[str, str]] = set()  # (from, to): a firewall answers for the second one, with resets
        self.dark: set[str] = set()  # hosts without power

    def is_rejected(self, one: Machine, other: Machine) -> bool:
        return (one.name, other.name) in self.rejected

    def killed(self, machine: Machine) -> None:
        """Its kernel ends the connections of the process."""
        self.links = [link for link in self.links if not link._closed and link._process is link._here.process]
        for link in self.links:
            if link.there is machine and not self.is_cut(link.here, machine) and machine.name not in self.dark:
                machine.loop.call_later(DELAY, link.reset, context=contextvars.Context())

    def is_cut(self, one: Machine, other: Machine) -> bool:
        return frozenset((one.name, other.name)) in self.cut

    def listen(self, machine: Machine, fingerprint: str, accept: Accept) -> None:
        self._listening[machine.name] = (machine, machine.process, fingerprint, accept)

    def dialer(self, here: Machine, fingerprint: str) -> "SimDialer":
        return SimDialer(self, here, fingerprint)


class SimDialer:
    def __init__(self, network: Network, here: Machine, fingerprint: str) -> None:
        self._network, self._here, self._fingerprint = network, here, fingerprint

    async def dial(self, addresses: tuple[str, ...], fingerprint: str) -> peers.Link:
        await self._here.sleep(DELAY * 2)
        refused = True
        for address in addresses:
            target = self._network._listening.get(address)
            if target is None:
                refused = False
                continue
            there, process, their_key, accept = target
            if self._network.is_cut(self._here, there) or there.name in self._network.dark:
                await self._here.sleep(DIAL_TIMEOUT)
                refused = False
                continue
            if self._network.is_rejected(self._here, there) or process is None or there.process is not process:
                continue
            if their_key != fingerprint:
                refused = False
                continue
            mine = SimLink(self._network, self._here, there, their_key)
            theirs = SimLink(self._network, there, self._here, self._fingerprint)
            mine.other, theirs.other = theirs, mine
            there.loop.create_task(_serve(accept, theirs), context=there.context())
            return mine
        told = "nobody answers at " + ", ".join(addresses)
        raise peers.PeerRefusedError(told) if refused else peers.LinkClosedError(told)


async def _serve(accept: Accept, link: SimLink) -> None:
    await accept(link)
