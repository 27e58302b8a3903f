"""How much one rendering may cost.

Time and memory are bounded by two counters: steps (nodes visited, loop turns, elements printed) and characters (every
text that a function reads or makes, every piece that is printed). The trap: a check after the fact is too late for
`printf "%9999999d"`, so whoever knows a size beforehand asks for `room` first.
"""

from dataclasses import dataclass

from nstance.gotemplate.errors import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    output: int = 1 << 20  # bytes of the result
    steps: int = 50_000
    characters: int = 4 << 20  # handled on the way to it
    depth: int = 64  # of nested data that is printed


class Budget:
    """What is left of the limits during one rendering."""

    __slots__ = ("characters", "depth", "limits", "output", "steps")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.output = limits.output
        self.steps = limits.steps
        self.characters = limits.characters
        self.depth = limits.depth

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise Fault(f"more than {self.limits.steps} steps; expected a template that does less")

    def handle(self, characters: int) -> None:
        self.room(characters)
        self.characters -= characters

    def room(self, characters: int) -> None:
        if characters > self.characters:
            raise Fault(f"more than {self.limits.characters} characters handled; expected smaller texts")

    def write(self, size: int) -> None:
        self.output -= size
        if self.output < 0:
            raise Fault(f"output of more than {self.limits.output} bytes; expected less")
