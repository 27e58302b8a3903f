"""The problems of a configuration, all reported at once, each with its place."""

from dataclasses import dataclass

MAX_PROBLEMS = 1_000  # reported for one document
MAX_QUOTED_CHARACTERS = 80  # of user input in a message


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Line and column count from 1; 0: the value came from an API call."""

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
    """An invalid configuration. The active configuration stays in use."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def quoted(word: object) -> str:
    """User input for a message: short, on one line, without terminal control characters."""
    text = word if isinstance(word, str) else repr(word)
    shown = text if len(text) <= MAX_QUOTED_CHARACTERS else text[:MAX_QUOTED_CHARACTERS] + "…"
    return '"' + "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in shown) + '"'
