"""Mass silence: when many agents fall silent while their VMs run, the fault is probably here or in between.

The trap: the last few that stay silent must not keep the exception up for ever, and the first few that return must not
end it while the others still reconnect. So it begins above a third and ends at a sixth.
"""

AT_LEAST = 3


def is_mass_silence(silent: int, agents: int, *, before: bool) -> bool:
    """`silent`: agents not heard of for `suspect_after` whose VM is said to run and which are not yet given up.
    `agents`: all that are connected or expected to be, the silent ones included. `before`: what was said last."""
    if before:
        return silent > 1 and silent * 6 > agents
    return silent >= AT_LEAST and silent * 3 > agents
