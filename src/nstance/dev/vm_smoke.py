"""The test of `make test-vm`: VMs boot and get their files; each way to lose one is noticed in time, and a reboot is none."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nstance.config import load
from nstance.dev import vms
from nstance.dev.errors import DevError
from nstance.dev.vms import Break
from nstance.model.ids import InstanceId
from nstance.model.instance import State
from nstance.providers.qemu import qmp

if TYPE_CHECKING:
    from nstance.dev.run import Dev

READY_SECONDS = 15.0  # from the decision to a VM with its files


@dataclass(frozen=True, slots=True)
class Loss:
    how: Break
    decided_within: float  # seconds until the replacement is decided
    kept_for: float = 0.0  # seconds for which the VM is kept, because it may return


def _losses(suspect_after: float, dead_after: float) -> tuple[Loss, ...]:
    return (
        Loss(Break.PANIC, 15.0),
        Loss(Break.POWER_CUT, 1.0),
        # Its agent said goodbye a moment before, so the first check came too early: the next ones follow soon.
        Loss(Break.POWER_OFF, 1.0),
        # A suspect gets a replacement after suspect_after, and has until dead_after to return.
        Loss(Break.FREEZE, suspect_after + 15.0, dead_after * 0.8),
        Loss(Break.CUT_NETWORK, suspect_after + 15.0, dead_after * 0.8),
    )


async def test(dev: "Dev") -> None:
    """Raises DevError."""
    await dev.until("VMs that run and have their files", dev.observer.is_healthy)
    ids = list(dev.observer.agents())
    for id in ids:
        _say_ready(dev, id, dev.clock.wall(), check=False)
    health = load.load(dev.config.read_text()).shard.health
    for loss in _losses(health.suspect_after, health.dead_after):
        await _lose(dev, loss)
    await _reboot(dev)


async def _lose(dev: "Dev", loss: Loss) -> None:
    before = set(dev.observer.first_seen)
    victim = next(iter(dev.observer.agents()))
    directory = dev.instances / victim
    dev.screen.say(f"{loss.how} of {victim}: {vms.WHAT_FOLLOWS[loss.how]}")
    broken = dev.clock.wall()
    await _break(dev, victim, loss.how)
    ended: list[float] = []

    def replacement() -> InstanceId | None:
        if not ended and (found := vms.ended_at(directory)) is not None:
            ended.append(found)  # a power-off takes the guest a moment: the loss is when the machine is off
        return dev.observer.find_replacement(victim, before)

    await dev.until(f"a replacement of {victim}", lambda: replacement() is not None)
    now, id = dev.clock.wall(), replacement()
    assert id is not None
    lost = ended[0] if ended and loss.how in (Break.PANIC, Break.POWER_OFF) else broken
    # Before the VM exists, its overlay disk is made and QEMU starts: that is the call itself.
    called = (dev.instances / ".ids" / id).stat().st_mtime
    created = dev.observer.first_seen[id].get(State.STARTING, now)
    decided = min(dev.observer.first_seen[id].values())
    dev.screen.say(
        f"replaced by {id}: decided {decided - lost:.2f} s, create called {called - lost:.2f} s and created "
        f"{created - lost:.2f} s after the loss"
    )
    if decided - lost > loss.decided_within:
        raise DevError(
            f"expected the replacement to be decided within {loss.decided_within:g} s after {loss.how}, found "
            f"{decided - lost:.2f} s"
        )
    if now - lost < loss.kept_for:
        raise DevError(f"expected {victim} to be kept for {loss.kept_for:g} s, found {now - lost:.2f} s")
    if loss.kept_for:
        dev.screen.say(f"{victim} was removed {now - lost:.2f} s after the loss")
        return
    _say_ready(dev, id, now, check=True)


async def _reboot(dev: "Dev") -> None:
    agents, known = dev.observer.agents(), set(dev.observer.first_seen)
    id = next(iter(agents))
    boots = vms.console(dev.instances / id).count("starting the agent")
    dev.screen.say(f"reboot of {id}: {vms.WHAT_FOLLOWS[Break.REBOOT]}")
    started = dev.clock.monotonic()
    await _break(dev, id, Break.REBOOT)
    await dev.until(
        f"{id} to boot again",
        lambda: vms.console(dev.instances / id).count("starting the agent") > boots and dev.observer.is_healthy(),
    )
    if dev.observer.agents() != agents or set(dev.observer.first_seen) != known:
        raise DevError(f"expected {id} to be the same instance after a reboot, but it was replaced")
    dev.screen.say(f"{id} is back {dev.clock.monotonic() - started:.2f} s later: the same instance")


async def _break(dev: "Dev", id: InstanceId, how: Break) -> None:
    with contextlib.ExitStack() as stack:
        if how is Break.POWER_CUT:
            stack.enter_context(contextlib.suppress(qmp.QmpError))  # it may end before it answers
        await asyncio.to_thread(vms.break_vm, dev.instances / id, how)


def _say_ready(dev: "Dev", id: InstanceId, now: float, *, check: bool) -> None:
    """`now`: when it was seen with its files."""
    decided = min(dev.observer.first_seen[id].values())
    dev.screen.say(f"{id}: ready {now - decided:.2f} s after the decision")
    if check and now - decided > READY_SECONDS:
        raise DevError(f"expected a VM to be ready within {READY_SECONDS:g} s, found {now - decided:.2f} s")
