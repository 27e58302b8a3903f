"""A parsed template. `at` is an offset into the source, for error messages.

Variables become slots while parsing, because scopes are lexical and a lookup by name in a loop would be slow.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    at: int
    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Nil:
    at: int


@dataclass(frozen=True, slots=True)
class Dot:
    at: int


@dataclass(frozen=True, slots=True)
class Field:
    at: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    at: int
    name: str
    slot: int
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields of a parenthesized pipeline or of a function's result."""

    at: int
    base: "Operand"
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    at: int
    words: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    at: int
    commands: tuple[Command, ...]
    slots: tuple[int, ...] = ()  # the variables that its value is assigned to
    declares: bool = False  # the variables are new


Operand = Literal | Nil | Dot | Field | Variable | Function | Chain | Pipe


@dataclass(frozen=True, slots=True)
class Text:
    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    at: int
    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Arm:
    pipe: Pipe
    body: "Body"


@dataclass(frozen=True, slots=True)
class Branch:
    """`if` or `with`, and each `else if` or `else with` after it."""

    at: int
    moves_dot: bool
    arms: tuple[Arm, ...]
    otherwise: "Body"


@dataclass(frozen=True, slots=True)
class Range:
    at: int
    pipe: Pipe
    body: "Body"
    otherwise: "Body"


@dataclass(frozen=True, slots=True)
class Break:
    at: int


@dataclass(frozen=True, slots=True)
class Continue:
    at: int


Node = Text | Action | Branch | Range | Break | Continue
Body = tuple[Node, ...]
