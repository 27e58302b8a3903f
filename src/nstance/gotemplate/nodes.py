"""A parsed template. `at` is an offset into the source, for error messages.

Variables become slots while parsing, because scopes are lexical and a lookup by name in a loop would be slow.
"""

from typing import NamedTuple


class Literal(NamedTuple):
    at: int
    value: str | int | float | bool


class Nil(NamedTuple):
    at: int


class Dot(NamedTuple):
    at: int


class Field(NamedTuple):
    at: int
    path: tuple[str, ...]


class Variable(NamedTuple):
    at: int
    name: str
    slot: int
    path: tuple[str, ...] = ()


class Function(NamedTuple):
    at: int
    name: str


class Chain(NamedTuple):
    """Fields of a parenthesized pipeline or of a function's result."""

    at: int
    base: "Operand"
    path: tuple[str, ...]


class Command(NamedTuple):
    at: int
    words: tuple["Operand", ...]


class Pipe(NamedTuple):
    at: int
    commands: tuple[Command, ...]
    slots: tuple[int, ...] = ()  # the variables that its value is assigned to
    declares: bool = False  # the variables are new


Operand = Literal | Nil | Dot | Field | Variable | Function | Chain | Pipe


class Text(NamedTuple):
    at: int
    text: str


class Action(NamedTuple):
    at: int
    pipe: Pipe


class Arm(NamedTuple):
    pipe: Pipe
    body: "Body"


class Branch(NamedTuple):
    """`if` or `with`, and each `else if` or `else with` after it."""

    at: int
    moves_dot: bool
    arms: tuple[Arm, ...]
    otherwise: "Body"


class Range(NamedTuple):
    at: int
    pipe: Pipe
    body: "Body"
    otherwise: "Body"


class Break(NamedTuple):
    at: int


class Continue(NamedTuple):
    at: int


Node = Text | Action | Branch | Range | Break | Continue
Body = tuple[Node, ...]
