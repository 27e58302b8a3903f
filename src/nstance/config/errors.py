"""What is wrong with a configuration: all of it at once, each fault with its place."""

from dataclasses import dataclass

MOST = 1_000  # problems reported for one document
SHOWN = 80  # characters of a foreign word that a message repeats


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. Line and column count from 1; 0 means that the value came from no file (an API call)."""

    path: str
    line: int
    column: int
    message: str
    hint: str = ""  # the word that was probably meant

    def __str__(self) -> str:
        place = f" (line {self.line}, column {self.column})" if self.line else ""
        hint = f" (did you mean {quoted(self.hint)}?)" if self.hint else ""
        return f"{self.path}{place}: {self.message}{hint}"


class ConfigError(Exception):
    """A configuration that must not be used. The one that was in use goes on."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def quoted(word: object) -> str:
    """A foreign word for a message: short, on one line, without anything that could steer a terminal."""
    text = word if isinstance(word, str) else repr(word)
    shown = text if len(text) <= SHOWN else text[:SHOWN] + "…"
    return '"' + "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in shown) + '"'
