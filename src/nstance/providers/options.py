"""A provider's options from the configuration: typed access, and an error for unknown ones."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from nstance.providers import errors


class Options:
    def __init__(self, kind: str, values: Mapping[str, object]) -> None:
        self._kind = kind
        self._values = values
        self._read: list[str] = []

    def text(self, name: str) -> str | None:
        value = self._value(name)
        if value is None or isinstance(value, str):
            return value
        raise self._type_error(name, "a text", value)

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text) if text else None

    def texts(self, name: str) -> list[str] | None:
        value = self._value(name)
        if value is None:
            return None
        if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
            return list(value)
        raise self._type_error(name, "a list of texts", value)

    def text_map(self, name: str) -> dict[str, str]:
        value = self._value(name)
        if value is None:
            return {}
        if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
            return dict(value)
        raise self._type_error(name, "an object of texts", value)

    def counts(self, name: str) -> dict[str, int]:
        value = self._value(name)
        if value is None:
            return {}
        if isinstance(value, Mapping) and all(type(count) is int and count >= 0 for count in value.values()):
            return {str(key): count for key, count in value.items()}
        raise self._type_error(name, "an object of counts", value)

    def count(self, name: str, *, default: int = 0) -> int:
        value = self._value(name)
        if value is None:
            return default
        if type(value) is int and value >= 0:
            return value
        raise self._type_error(name, "a whole number", value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._value(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._type_error(name, "true or false", value)

    def ratio(self, name: str, *, default: float) -> float:
        value = self._value(name)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1000:
            return float(value)
        raise self._type_error(name, "a number above 0", value)

    def seconds(self, name: str) -> float:
        value = self._value(name)
        if value is None:
            return 0.0
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
            return float(value)
        raise self._type_error(name, "a number of seconds", value)

    def number(self, name: str) -> float:
        """Zero if it is not set."""
        value = self._value(name)
        if value is None:
            return 0.0
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
            return float(value)
        raise self._type_error(name, "a number above 0", value)

    def finish(self) -> None:
        """Raises for options that were not read."""
        for name in self._values:
            if name not in self._read:
                near = difflib.get_close_matches(name, self._read, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._read))}"
                raise errors.PermanentError(f"provider {self._kind!r} has no option {name!r}; {hint}")

    def _value(self, name: str) -> object:
        self._read.append(name)
        return self._values.get(name)

    def _type_error(self, name: str, expected: str, value: object) -> errors.PermanentError:
        # The type, not the value, which may be a misplaced secret.
        return errors.PermanentError(
            f"option {name!r} of provider {self._kind!r}: expected {expected}, found {type(value).__name__}"
        )
