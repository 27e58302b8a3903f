"""IAM policies, as far as the servers' own policy uses them.

moto evaluates policies too, but neither their conditions nor the resources of EC2 calls. A policy that is limited to tagged
resources would deny everything there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Need:
    """A permission that a call needs. `context` has the values of condition keys."""

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)


class Policy:
    """What one role may do."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._statements: Sequence[Mapping[str, Any]] = document["Statement"]

    def allows(self, need: Need) -> bool:
        """A denial wins over everything, and what no statement allows is denied."""
        effects = {statement["Effect"] for statement in self._statements if _covers(statement, need)}
        return effects == {"Allow"}


def without(document: Mapping[str, Any], sid: str, action: str) -> Mapping[str, Any]:
    """The same policy, less one permission of one statement."""
    kept = []
    for statement in document["Statement"]:
        actions = _listed(statement["Action"])
        if statement["Sid"] == sid:
            if action not in actions:
                raise ValueError(f"statement {sid} does not have {action}")
            actions = [each for each in actions if each != action]
        if actions:
            kept.append({**statement, "Action": actions})
    return {**document, "Statement": kept}


def _covers(statement: Mapping[str, Any], need: Need) -> bool:
    return (
        any(_is_like(need.action.lower(), each.lower()) for each in _listed(statement["Action"]))
        and any(_is_like(need.resource, each) for each in _listed(statement["Resource"]))
        and all(
            _holds(operator, need.context.get(key), _listed(values))
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _holds(operator: str, found: str | None, values: Sequence[str]) -> bool:
    match operator:
        case "StringEquals":
            return found in values
        case "StringLike":
            return found is not None and any(_is_like(found, value) for value in values)
        case _:
            raise NotImplementedError(f"the stand-in does not know the condition {operator}")


def _is_like(text: str, pattern: str) -> bool:
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, text, re.DOTALL) is not None


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
