"""A deliberate defect: where, what instead of what, why it would hurt, and who notices it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    module: str
    old: str
    new: str
    why: str
    seeds: tuple[int, ...] = ()
    tests: tuple[str, ...] = ()
