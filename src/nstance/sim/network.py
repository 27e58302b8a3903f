"""Links between simulated servers: ordered, with a delay, and faults.

The links of a killed process are reset and its port refuses new ones. Links of a stopped process, or of a host that lost
power, deliver nothing. Between two servers a network can be cut, or reject one direction with resets as if the other
server were dead.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from nstance.server.election import peers
from nstance.sim.loop import Machine, Process

DELAY_SECONDS = 0.001
DIAL_TIMEOUT_SECONDS = 1.0


class SimLink:
    def __init__(self, network: "Network", here: Machine, there: Machine, fingerprint: str) -> None:
        self.server = there.name
        self.fingerprint = fingerprint
        self._network = network
        self.here, self.there = here, there
        self._process = here.process
        self._inbox: asyncio.Queue[peers.Message | None] = asyncio.Queue()
        self._closed = False
        self.other: SimLink | None = None
        network.links.append(self)

    def reset(self) -> None:
        """What was sent came back as a reset. The other side does not notice."""
        if not self._closed:
            self._inbox.put_nowait(None)

    def send(self, message: peers.Message) -> None:
        other = self.other
        if self._closed or other is None:
            return
        self._send(other, message)

    def _send(self, other: "SimLink", message: peers.Message | None) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(DELAY_SECONDS, self._deliver, other, message, context=contextvars.Context())

    def _deliver(self, other: "SimLink", message: peers.Message | None) -> None:
        if self._network.is_cut(self.here, self.there):
            return
        if self._network.is_rejected(self.here, self.there):
            self.reset()
            return
        if other._process is not other.here.process:
            if other.here.name not in self._network.dark:
                self.reset()
            return
        if other._closed:
            if not self._network.is_rejected(self.there, self.here):
                self.reset()
            return
        other._inbox.put_nowait(message)

    async def receive(self) -> peers.Message:
        message = None if self._closed else await self._inbox.get()
        if message is None:
            self._closed = True
            raise peers.LinkClosedError("the link is closed")
        return message

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbox.put_nowait(None)
            if self.other is not None:
                self._send(self.other, None)


Accept = Callable[[peers.Link], Awaitable[None]]


class Network:
    def __init__(self) -> None:
        self._listening: dict[str, tuple[Machine, Process | None, str, Accept]] = {}
        self.links: list[SimLink] = []
        self.cut: set[frozenset[str]] = set()
        self.rejected: set[tuple[str, str]] = set()  # (from, to): a firewall answers for the second one with resets
        self.dark: set[str] = set()  # hosts without power

    def is_rejected(self, one: Machine, other: Machine) -> bool:
        return (one.name, other.name) in self.rejected

    def on_kill(self, machine: Machine) -> None:
        """Its kernel resets the connections of the process."""
        self.links = [link for link in self.links if not link._closed and link._process is link.here.process]
        for link in self.links:
            if link.there is machine and not self.is_cut(link.here, machine) and machine.name not in self.dark:
                machine.loop.call_later(DELAY_SECONDS, link.reset, context=contextvars.Context())

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
        await self._here.sleep(DELAY_SECONDS * 2)
        refused = True
        for address in addresses:
            target = self._network._listening.get(address)
            if target is None:
                refused = False
                continue
            there, process, their_key, accept = target
            if self._network.is_cut(self._here, there) or there.name in self._network.dark:
                await self._here.sleep(DIAL_TIMEOUT_SECONDS)
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
            there.loop.create_task(_accept(accept, theirs), context=there.context())
            return mine
        message = f"failed to connect to {', '.join(addresses)}"
        raise peers.PeerRefusedError(message) if refused else peers.LinkClosedError(message)


async def _accept(accept: Accept, link: SimLink) -> None:
    await accept(link)
