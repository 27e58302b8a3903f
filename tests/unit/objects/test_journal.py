"""The journal over a store that can be damaged, lost and overtaken."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from nstance.clock import Clock, SystemClock, SystemRng
from nstance.model import codec
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, Put, State
from nstance.model.rollout import GroupRecord
from nstance.objects import journal, journal_writer, settle, slots
from nstance.objects.errors import PermissionDeniedError, UnavailableError, UnknownOutcomeError
from nstance.objects.memory import Fate, MemoryStore, Verb
from nstance.objects.port import Key
from nstance.server.leader import history
from nstance.sim.loop import Machine
from support.hand_clock import HandClock
from support.journals import snapshot_body
from support.virtual_time import virtually

WEEK = 7 * 86400.0


def instance(name: str) -> Instance:
    return Instance(
        id=InstanceId(name), tenant=TenantId("default"), group=GroupName("web"), state=State.PENDING, created=1.0
    )


def entry(name: str) -> slots.Entry:
    return slots.Entry(
        id=name, reason=(slots.LoggedReason("scale-up", "because", name),), changes=(Put(instance(name)),)
    )


class Script:
    """Fates for the next writes, in order; then none."""

    def __init__(self, *fates: Fate) -> None:
        self.fates = list(fates)
        self.writes = 0

    async def __call__(self, verb: Verb, key: str) -> Fate:
        if verb is Verb.CREATE:
            self.writes += 1
            if self.fates:
                return self.fates.pop(0)
        return Fate()


async def no_guard() -> None:
    return None


def open_journal(
    store: MemoryStore, limits: journal.Limits = journal.LIMITS, clock: Clock | None = None
) -> journal.Journal:
    return journal.Journal(
        store, journal_prefix="j/", snapshot_prefix="s/", clock=clock or SystemClock(), limits=limits
    )


@asynccontextmanager
async def writing(
    store: MemoryStore, limits: journal.Limits = journal.LIMITS, *, epoch: int = 1, clock: Clock | None = None
) -> AsyncIterator[journal_writer.Writer]:
    opened = open_journal(store, limits, clock)
    book, _ = await opened.load()
    writer = journal_writer.Writer(opened, book, epoch=epoch, guard=no_guard, rng=SystemRng())
    await writer.fence()
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def state(store: MemoryStore) -> set[str]:
    book, _ = await open_journal(store).load()
    return set(book.instances)


async def test_what_was_committed_is_read_back() -> None:
    store = MemoryStore(SystemClock())
    async with writing(store) as writer:
        await writer.commit(entry("a"))
        await asyncio.gather(writer.commit(entry("b")), writer.commit(entry("c")))
        assert writer.tail == 3, "the second and third decision share a slot behind the fence"
    assert await state(store) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param(Fate(error=UnavailableError("503")), id="refused before it was applied"),
        pytest.param(Fate(lost=True), id="applied, but the answer is lost"),
        pytest.param(Fate(error=UnknownOutcomeError("reset")), id="not applied, and nobody says so"),
        pytest.param(Fate(late=0.05), id="applied late"),
    ],
)
@virtually
async def test_a_write_of_unknown_outcome_is_settled_once(clock: Machine, fate: Fate) -> None:
    store = MemoryStore(clock)
    async with writing(store, clock=clock):
        pass
    async with writing(store.view(Script(Fate(), fate)), epoch=2, clock=clock) as writer:
        await writer.commit(entry("a"))
        await writer.commit(entry("b"))
    await clock.sleep(0.06)
    numbers = sorted(k for k in store.contents() if k.startswith("j/"))
    assert len(numbers) == 4, "two fences and two decisions, each once"
    assert await state(store) == {"a", "b"}


async def test_an_older_leader_is_fenced_off() -> None:
    """Its next append finds the slot taken by a higher epoch."""
    store = MemoryStore(SystemClock())
    async with writing(store, epoch=1) as old:
        await old.commit(entry("a"))
        async with writing(store, epoch=2) as new:
            with pytest.raises(journal.DeposedError):
                await old.commit(entry("late"))
            with pytest.raises(journal.DeposedError):
                await old.commit(entry("later"))
            await new.commit(entry("b"))
    assert await state(store) == {"a", "b"}


async def test_the_fence_absorbs_what_an_older_leader_managed_to_write() -> None:
    store = MemoryStore(SystemClock())
    async with writing(store, epoch=1) as old:
        book, _ = await open_journal(store).load()
        await old.commit(entry("just-in-time"))
        new = journal_writer.Writer(open_journal(store), book, epoch=2, guard=no_guard, rng=SystemRng())
        await new.fence()
        assert "just-in-time" in book.instances


async def test_a_leader_that_reads_a_higher_epoch_is_deposed() -> None:
    store = MemoryStore(SystemClock())
    async with writing(store, epoch=5):
        pass
    book, _ = await open_journal(store).load()
    late = journal_writer.Writer(open_journal(store), book, epoch=4, guard=no_guard, rng=SystemRng())
    with pytest.raises(journal.DeposedError):
        await late.fence()


async def test_equal_epochs_cannot_both_write() -> None:
    """After a lost lease object two leaders could share an epoch; the slot decides."""
    store = MemoryStore(SystemClock())
    async with writing(store, epoch=3) as one:
        other_book, _ = await open_journal(store).load()
        await one.commit(entry("a"))
        other = journal_writer.Writer(open_journal(store), other_book, epoch=3, guard=no_guard, rng=SystemRng())
        task = asyncio.create_task(other.run())
        with pytest.raises(journal.DeposedError):
            await other.commit(entry("b"))
        await asyncio.gather(task, return_exceptions=True)


def slot_key(number: int) -> str:
    return f"j/{number:020d}.json"


async def filled(count: int) -> MemoryStore:
    store = MemoryStore(SystemClock())
    async with writing(store) as writer:
        for number in range(count):
            await writer.commit(entry(f"i{number}"))
    return store


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda body: body[: len(body) // 2], "is not valid"),
        (lambda body: body.replace(b"pending", b"running"), "checksum"),
        (lambda body: b"", "is not valid"),
        (lambda body: b"[]", "is not valid"),
        (lambda body: body.replace(b'"v":1', b'"v":2'), "checksum"),
    ],
)
async def test_a_damaged_slot_stops_the_reader(damage: object, says: str) -> None:
    """Never skipped, never read as empty."""
    store = await filled(3)
    body = store.contents()[slot_key(2)]
    store.tamper(slot_key(2), damage(body))  # type: ignore[operator]
    with pytest.raises(slots.DamagedError, match=says):
        await open_journal(store).load()


async def test_a_newer_version_stops_the_reader() -> None:
    """An older program refuses to lead over entries that it does not know."""
    store = await filled(1)
    store.tamper(
        slot_key(3),
        slots._sealed({"v": 2, "slot": 3, "epoch": 1, "op": "x", "at": 1.0, "entries": []})[0],
    )
    with pytest.raises(slots.DamagedError, match="upgrade"):
        await open_journal(store).load()


async def test_a_hole_stops_the_reader() -> None:
    """A rule that eats journal objects must not look like a short journal."""
    store = await filled(5)
    store.tamper(slot_key(3), None)
    with pytest.raises(slots.DamagedError, match="slot 3 is missing"):
        await open_journal(store).load()


async def test_an_unavailable_store_is_not_an_empty_one() -> None:
    store = await filled(2)

    async def down(verb: Verb, key: str) -> Fate:
        return Fate(error=UnavailableError("503"))

    with pytest.raises(UnavailableError):
        await open_journal(store.view(down)).load()


async def test_snapshots_shorten_the_reading() -> None:
    """However long a bucket was written to, a start reads the last snapshot and what came after it."""
    store = MemoryStore(SystemClock())
    async with writing(store, journal.Limits(snapshot_slots=4)) as writer:
        for number in range(10):
            await writer.commit(entry(f"i{number}"))
            if writer.is_snapshot_due():
                await writer.snapshot()
    book, alarms = await open_journal(store).load()
    assert len(book.instances) == 10
    assert book.snapshot == 8
    assert not alarms


async def test_a_damaged_snapshot_falls_back_to_the_one_before() -> None:
    """The previous snapshot and the journal after it give the same state, and there is an alarm."""
    store = MemoryStore(SystemClock())
    async with writing(store, journal.Limits(snapshot_slots=4)) as writer:
        for number in range(10):
            await writer.commit(entry(f"i{number}"))
            if writer.is_snapshot_due():
                await writer.snapshot()
    newest = max(k for k in store.contents() if k.startswith("s/"))
    store.tamper(newest, store.contents()[newest][:-30])
    book, alarms = await open_journal(store).load()
    assert len(book.instances) == 10
    assert alarms


async def test_compaction_keeps_what_somebody_may_need() -> None:
    """Slots go only when they lie before the last two snapshots and are older than seven days."""
    store, clock = await filled(1), HandClock()
    async with writing(store, journal.Limits(snapshot_slots=3), epoch=2, clock=clock) as writer:
        for number in range(20):
            await writer.commit(entry(f"n{number}"))
            if writer.is_snapshot_due():
                await writer.snapshot()
        await clock.advance(WEEK - 1.0)
        await writer.snapshot()
        assert slot_key(1) in store.contents(), "nothing is a week old"
        await clock.advance(WEEK)
        await writer.commit(entry("last"))
        await writer.snapshot()
    left = sorted(int(k[2:-5]) for k in store.contents() if k.startswith("j/"))
    snapshots = sorted(int(k[2:-5]) for k in store.contents() if k.startswith("s/"))
    assert left[0] == snapshots[-2]
    assert len(await state(store)) == 22


@pytest.mark.parametrize("damage", [b'"v":9', b'"at":"x","v":1', b"}{"])
async def test_compaction_keeps_what_lies_before_a_snapshot_that_cannot_be_read(damage: bytes) -> None:
    store, clock = await filled(1), HandClock()
    async with writing(store, journal.Limits(snapshot_slots=3), epoch=2, clock=clock) as writer:
        for number in range(12):
            await writer.commit(entry(f"n{number}"))
            if writer.is_snapshot_due():
                await writer.snapshot()
        before = sorted(k for k in store.contents() if k.startswith("s/"))
        store.tamper(before[-1], store.contents()[before[-1]].replace(b'"v":1', damage))
        await clock.advance(WEEK + 1.0)
        await writer.snapshot()
    left = sorted(k for k in store.contents() if k.startswith("j/"))
    assert left[0] == before[-2].replace("s/", "j/")


async def test_settle_reports_who_was_first() -> None:
    store = MemoryStore(SystemClock())
    await store.create(Key("k"), b'{"op":"theirs"}')

    async def retry(problem: Exception) -> None:
        raise AssertionError("nothing to retry")

    ours = settle.ConditionalWrite(key=Key("k"), body=b'{"op":"ours"}', op="ours", seen=None)
    with pytest.raises(settle.OvertakenError) as overtaken:
        await settle.write(store, ours, timeout=lambda: 1.0, retry=retry)
    assert overtaken.value.found is not None
    assert overtaken.value.found.body == b'{"op":"theirs"}'


async def test_a_slot_that_is_too_large_is_damage_and_is_never_skipped() -> None:
    """8 MiB, as the specification says."""
    store = MemoryStore(SystemClock())
    async with writing(store) as writer:
        await writer.commit(entry("a"))
        store.tamper("j/00000000000000000003.json", bytes((8 << 20) + 1))
        with pytest.raises(
            slots.DamagedError, match=r"slot 3 is taken .* expected at most 8,388,608 bytes in .*, found 8,388,609"
        ):
            await writer.commit(entry("b"))
    with pytest.raises(slots.DamagedError, match="slot 3 is larger than any that Nstance writes"):
        await state(store)
    with pytest.raises(slots.DamagedError, match="slot 3"):
        async with writing(store, epoch=2):
            raise AssertionError("nobody leads on it")


async def test_a_snapshot_that_is_too_large_is_an_alarm_and_an_older_one_is_used() -> None:
    store = MemoryStore(SystemClock())
    async with writing(store) as writer:
        await writer.commit(entry("a"))
        await writer.snapshot()
    store.tamper("s/00000000000000000009.json", bytes((64 << 20) + 1))
    book, alarms = await open_journal(store).load()
    assert set(book.instances) == {"a"}
    assert "snapshot 9 is larger than any that Nstance writes" in alarms[0]


SMALL = journal.Limits(slot_bytes=4000)


def large_entry(count: int, *, reasons: bool = True) -> slots.Entry:
    names = [f"i{n}" for n in range(count)]
    why = tuple(slots.LoggedReason("scale-up", "because", name) for name in names) if reasons else ()
    groups = tuple(GroupRecord(key=GroupKey(TenantId("default"), GroupName(f"g{n}"))) for n in range(3))
    groups = tuple(replace(each, dynamic=True) for each in groups)
    drainers = {TenantId("default"): True}
    return slots.Entry(
        id="1-2", reason=why, changes=tuple(Put(instance(name)) for name in names), groups=groups, drainers=drainers
    )


async def test_a_decision_that_is_too_large_for_a_slot_is_written_in_parts_and_counts_as_one() -> None:
    store, large = MemoryStore(SystemClock()), large_entry(100)
    async with writing(store, SMALL) as writer:
        small = [writer.commit(entry("before")), writer.commit(large), writer.commit(entry("after"))]
        await asyncio.gather(*small)
        assert all(len(body) <= SMALL.slot_bytes for body in store.contents().values())
        assert len(store.contents()) > 10
    read: list[slots.Slot] = []
    book, _ = await open_journal(store, SMALL).load(on_slot=read.append)
    assert set(book.instances) == {"before", "after", *(f"i{n}" for n in range(100))}
    assert (len(book.groups), book.drainers, book.decisions.is_waiting) == (3, {"default"}, False)
    # Put together it is what was decided, and each reason names its group also where it has no record beside it.
    assembler = slots.Assembler()
    _, whole, _ = (found for slot in read for found in assembler.add(slot))
    reasons = tuple(replace(why, tenant="default", group="web") for why in large.reason)
    assert whole == replace(large, reason=reasons)
    named = {event.instance for slot in read for event in history.events(slot) if event.group == "web"}
    assert named >= {f"i{n}" for n in range(100)}


@pytest.mark.parametrize("lost", range(1, 12))
async def test_a_decision_whose_last_part_is_missing_never_happened(lost: int) -> None:
    """The leader dies between two parts. The next one, and each reader, sees the state before the decision."""
    store = MemoryStore(SystemClock())
    async with writing(store, SMALL) as writer:
        await writer.commit(entry("before"))
        await writer.commit(large_entry(40, reasons=False))
        last = writer.tail
    assert last - 3 >= 11, "fence, a small decision, and at least that many parts of the large one"
    for number in range(last - lost + 1, last + 1):
        store.tamper(f"j/{number:020d}.json", None)
    torn, _ = await open_journal(store, SMALL).load()
    assert (set(torn.instances), torn.groups, torn.drainers) == ({"before"}, {}, set())
    async with writing(store, SMALL, epoch=2) as writer:
        fenced, _ = await open_journal(store, SMALL).load()
        assert (torn.decisions.is_waiting, fenced.decisions.is_waiting) == (True, False)
        await writer.commit(entry("after"))
        await writer.snapshot()
    for _ in range(2):
        assert set((await open_journal(store, SMALL).load())[0].instances) == {"before", "after"}
        for name in [key for key in store.contents() if key.startswith("s/")]:
            store.tamper(name, None)  # and again without the snapshot


async def test_no_snapshot_is_due_between_two_parts() -> None:
    store, due = MemoryStore(SystemClock()), []
    opened = open_journal(store, replace(SMALL, snapshot_slots=1))
    book, _ = await opened.load()
    writer = journal_writer.Writer(
        opened,
        book,
        epoch=1,
        guard=no_guard,
        rng=SystemRng(),
        on_append=lambda slot: due.append(writer.is_snapshot_due()),
    )
    await writer.fence()
    task = asyncio.create_task(writer.run())
    await writer.commit(large_entry(40))
    task.cancel()
    assert len(due) > 10
    assert due == [True, *[False] * (len(due) - 2), True]


async def test_nothing_is_written_that_could_not_be_read() -> None:
    """A record that is larger than a slot cannot be divided."""
    store = MemoryStore(SystemClock())
    async with writing(store, SMALL) as writer:
        with pytest.raises(PermissionDeniedError, match="slot 2 would have"):
            await writer.commit(slots.Entry(id="1", reason=(slots.LoggedReason("c", "x" * 5000),)))
    assert list(store.contents()) == ["j/00000000000000000001.json"]


async def test_who_drains_is_read_back_from_slots_and_from_a_snapshot() -> None:
    store = MemoryStore(SystemClock())
    acme, globex = TenantId("acme"), TenantId("globex")
    async with writing(store) as writer:
        await writer.commit(slots.Entry(id="1", drainers={acme: True, globex: True}))
        await writer.commit(slots.Entry(id="2", drainers={globex: False}))
        assert (await open_journal(store).load())[0].drainers == {acme}
        await writer.snapshot()
        await writer.commit(slots.Entry(id="3", drainers={globex: True}))
    book, _ = await open_journal(store).load()
    assert (book.snapshot > 0, book.drainers) == (True, {acme, globex})


def test_a_snapshot_in_pieces_is_the_canonical_json_of_all_of_it() -> None:
    for count in (0, 1, 3):
        found = slots.Snapshot(
            number=7, epoch=3, at=1.5, instances={each.id: each for each in (instance(f"i{n}") for n in range(count))}
        )
        body = snapshot_body(found, op="o")
        assert body == codec.canonical(json.loads(body))
        assert slots.decode_snapshot(7, body) == found
        assert slots.claimed_time(7, body) == 1.5


async def test_a_large_snapshot_does_not_hold_up_the_event_loop() -> None:
    store = MemoryStore(SystemClock())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with writing(store) as writer:
        await writer.commit(slots.Entry(id="many", changes=tuple(Put(instance(f"i{n}")) for n in range(1000))))
        counting = asyncio.create_task(count())
        await writer.snapshot()
        counting.cancel()
    assert turns >= 1000 // journal_writer.PIECES_PER_TURN - 1
    assert len(await state(store)) == 1000


async def test_of_a_week_of_snapshots_only_the_oldest_is_read() -> None:
    """Each holds the whole state: to read all of them again and again would cost more than everything else."""
    store, read = MemoryStore(SystemClock()), []

    async def watch(verb: Verb, key: str) -> Fate:
        if verb is Verb.GET and key.startswith("s/"):
            read.append(key)
        return Fate()

    async with writing(store.view(watch), journal.Limits(snapshot_slots=3)) as writer:
        for number in range(20):
            await writer.commit(entry(f"n{number}"))
            if writer.is_snapshot_due():
                read.clear()
                await writer.snapshot()
    assert len([k for k in store.contents() if k.startswith("s/")]) > 4
    assert len(read) == 1
