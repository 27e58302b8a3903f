"""Hostile clients as faults."""

from chaos import hostile
from chaos.faults.strike import Act, Strike, fault
from chaos.world import World


def _hostile(act: hostile.Attack) -> Act:
    async def strike_with(world: World, strike: Strike) -> None:
        summary = (act.__doc__ or "").rstrip(".")
        strike.now = summary[:1].lower() + summary[1:]
        outcome = await act(world)
        strike.proof += outcome.counts
        strike.problems += outcome.problems

    strike_with.__name__ = act.__name__
    return fault("hostile")(strike_with)


for _each in hostile.ATTACKS:
    _hostile(_each)
