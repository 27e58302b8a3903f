"""Who counts as a drainer, for how long, and what the journal records of it."""

from nstance.model.ids import TenantId
from nstance.server.state.drainers import Drainers
from nstance.sim.loop import Machine
from support.virtual_time import virtually

ACME = TenantId("acme")
LEASE = 60.0


def scene(clock: Machine, *known: TenantId) -> tuple[Drainers, list[tuple[TenantId, bool]]]:
    recorded: list[tuple[TenantId, bool]] = []
    drainers = Drainers(
        known, clock=clock, lease=lambda: LEASE, record=lambda tenant, drains: recorded.append((tenant, drains))
    )
    drainers.start()
    return drainers, recorded


@virtually
async def test_it_counts_while_it_watches_and_for_its_lease_afterwards(clock: Machine) -> None:
    drainers, recorded = scene(clock)
    assert drainers.last_seen(ACME) is None
    with drainers.watching(ACME):
        await clock.sleep(10 * LEASE)
        assert drainers.last_seen(ACME) == clock.steady()
    left = clock.steady()
    await clock.sleep(LEASE - 1)
    assert drainers.last_seen(ACME) == left
    assert recorded == [(ACME, True)]
    await clock.sleep(2)
    assert drainers.last_seen(ACME) is None
    assert recorded == [(ACME, True), (ACME, False)]


@virtually
async def test_the_last_of_several_watches_begins_the_lease(clock: Machine) -> None:
    drainers, recorded = scene(clock)
    with drainers.watching(ACME):
        with drainers.watching(ACME):
            await clock.sleep(1)
        await clock.sleep(2 * LEASE)
        assert drainers.last_seen(ACME) == clock.steady()
    await clock.sleep(LEASE / 2)
    with drainers.watching(ACME):  # it reconnects: nothing is written
        await clock.sleep(2 * LEASE)
    assert recorded == [(ACME, True)]
    assert drainers.last_seen(TenantId("globex")) is None


@virtually
async def test_a_new_term_waits_a_lease_for_those_of_the_last_one(clock: Machine) -> None:
    began = clock.steady()
    drainers, recorded = scene(clock, ACME, TenantId("globex"))
    assert drainers.last_seen(ACME) == began
    await clock.sleep(LEASE / 2)
    with drainers.watching(ACME):
        await clock.sleep(LEASE)
        assert recorded == [(TenantId("globex"), False)]
        assert drainers.last_seen(TenantId("globex")) is None


@virtually
async def test_after_the_term_nothing_is_written(clock: Machine) -> None:
    drainers, recorded = scene(clock, ACME)
    with drainers.watching(ACME):
        drainers.close()
    await clock.sleep(2 * LEASE)
    assert recorded == []


@virtually
async def test_who_is_back_before_the_leases_run_is_not_given_up(clock: Machine) -> None:
    recorded: list[tuple[TenantId, bool]] = []
    drainers = Drainers(
        [ACME], clock=clock, lease=lambda: LEASE, record=lambda tenant, drains: recorded.append((tenant, drains))
    )
    with drainers.watching(ACME):
        drainers.start()
        await clock.sleep(2 * LEASE)
    drainers.start()
    await clock.sleep(2 * LEASE)
    assert recorded == [(ACME, False)]
