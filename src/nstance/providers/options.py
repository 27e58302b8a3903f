"""A provider's options from the configuration: typed access, and an error for unknown ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nstance.providers import errors


class Options:
    def __init__(self, kind: str, values: Mapping[str, object]) -> None:
        self._kind = kind
        self._values = values
        self._read: list[str] = []

    def text(self, name: str) -> str | None:
        found = self._checked(name, "a text", lambda value: isinstance(value, str), None)
        return None if found is None else str(found)

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text) if text else None

    def texts(self, name: str) -> list[str] | None:
        found = self._checked(name, "a list of texts", _is_texts, None)
        return None if found is None else list(found)

    def text_map(self, name: str) -> dict[str, str]:
        return dict(self._checked(name, "an object of texts", _is_text_map, {}))

    def counts(self, name: str) -> dict[str, int]:
        found = self._checked(name, "an object of counts", _is_count_map, {})
        return {str(key): count for key, count in found.items()}

    def count(self, name: str, *, default: int = 0) -> int:
        return int(self._checked(name, "a whole number", _is_count, default))

    def flag(self, name: str, *, default: bool) -> bool:
        return bool(self._checked(name, "true or false", lambda value: isinstance(value, bool), default))

    def ratio(self, name: str, *, default: float) -> float:
        return float(
            self._checked(name, "a number above 0", lambda value: _is_number(value) and 0 < value < 1000, default)
        )

    def seconds(self, name: str) -> float:
        return float(
            self._checked(name, "a number of seconds", lambda value: _is_number(value) and 0 <= value < 1e9, 0.0)
        )

    def number(self, name: str) -> float:
        """Zero if it is not set."""
        return float(self._checked(name, "a number above 0", lambda value: _is_number(value) and 0 < value < 1e9, 0.0))

    def finish(self) -> None:
        """Raises for options that were not read."""
        for name in self._values:
            if name not in self._read:
                import difflib

                near = difflib.get_close_matches(name, self._read, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._read))}"
                raise errors.PermanentError(f"provider {self._kind!r} has no option {name!r}; {hint}")

    def _checked(self, name: str, expected: str, check: Callable[[Any], bool], default: Any) -> Any:
        self._read.append(name)
        value = self._values.get(name)
        if value is None:
            return default
        if not check(value):
            # The type, not the value, which may be a misplaced secret.
            found = type(value).__name__
            raise errors.PermanentError(
                f"option {name!r} of provider {self._kind!r}: expected {expected}, found {found}"
            )
        return value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, str) for each in value)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_count_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_count, value.values()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
