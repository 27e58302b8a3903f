"""Hostile clients as faults."""

from chaos import hostile
from chaos.faults.strike import Act, Strike, fault
from chaos.world import World


def _hostile(act: hostile.Attack) -> Act:
    async def strike_with(world: World, strike: Strike) -> None:
        about = (act.__doc__ or "").rstrip(".")
        strike.now = about[:1].lower() + about[1:]
        said = await act(world)
        strike.proof += said.counts
        strike.problems += said.problems

    strike_with.__name__ = act.__name__
    return fault("hostile")(strike_with)


for _each in hostile.ATTACKS:
    _hostile(_each)
