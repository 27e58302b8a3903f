"""Limits of one rendering.

Two counters bound time and memory: steps (nodes, loop iterations, printed elements) and characters (of every string that
a function reads or returns, or that is printed). The trap: for `printf "%9999999d"` a check afterwards is too late, so code
that knows a size in advance calls `reserve_characters` first.
"""

from dataclasses import dataclass

from nstance.gotemplate.errors import UnlocatedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    output: int = 1 << 20  # bytes of the result
    steps: int = 50_000
    characters: int = 4 << 20  # processed in total
    depth: int = 64  # of nested data that is printed


class Budget:
    """The remaining limits of one rendering."""

    __slots__ = ("characters", "depth", "limits", "output", "steps")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.output = limits.output
        self.steps = limits.steps
        self.characters = limits.characters
        self.depth = limits.depth

    def spend_steps(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise UnlocatedError(f"more than {self.limits.steps} steps; expected a template that does less")

    def spend_characters(self, characters: int) -> None:
        self.reserve_characters(characters)
        self.characters -= characters

    def reserve_characters(self, characters: int) -> None:
        if characters > self.characters:
            raise UnlocatedError(f"more than {self.limits.characters} characters processed; expected smaller strings")

    def spend_output(self, size: int) -> None:
        self.output -= size
        if self.output < 0:
            raise UnlocatedError(f"output of more than {self.limits.output} bytes; expected less")
