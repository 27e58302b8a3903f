"""The election context of one server with a scripted peer, in time that moves by hand."""

from dataclasses import dataclass, field

from nstance.core.election import Timings
from nstance.objects import memory
from nstance.objects.lease import Holder, Lease
from nstance.objects.port import Key
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.shard_time import ShardTime
from nstance.server.election.standby import Standby
from nstance.sim.rng import SeededRng
from support.hand_clock import HandClock

KEY = Key("leader.json")
OTHER = Holder(server="other", incarnation="other.1", addresses=("other",), fingerprint="key")
LED = Lease(
    epoch=3,
    sequence=1,
    op="1",
    holder=OTHER,
    free=False,
    length=Timings().length_with_members,
    promise=Timings().promise,
    crash_wait=Timings().crash_wait,
)


@dataclass
class Link:
    """Records what is sent to the peer, which never answers."""

    fingerprint: str = "key"
    server: str = "other"
    sent: list[peers.Message] = field(default_factory=list)

    def send(self, message: peers.Message) -> None:
        self.sent.append(message)

    async def receive(self) -> peers.Message:
        raise peers.LinkClosedError("no peer")

    def close(self) -> None:
        return


def beat(epoch: int = 3) -> peers.Heartbeat:
    return peers.Heartbeat(epoch=epoch, sequence=1, version="v1", tail=0, number=1, member=True)


def make_context(clock: HandClock, store: memory.MemoryStore | None = None) -> tuple[ElectionContext, ShardTime]:
    context = ElectionContext(
        store=store or memory.MemoryStore(clock),
        key=KEY,
        me=Holder(server="me", incarnation="me.1"),
        timings=Timings(),
        clock=clock,
        rng=SeededRng(1),
    )
    return context, ShardTime(context.store, context.key, clock=clock, anchor=lambda steady: None)


def new_standby(clock: HandClock, store: memory.MemoryStore | None = None) -> Standby:
    """It knows no other server yet."""

    async def no_journal() -> int:
        return 0

    return Standby(*make_context(clock, store), floor=no_journal, on_tail=lambda tail: None)
