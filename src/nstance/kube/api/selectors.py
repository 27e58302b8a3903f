"""Label and field selectors in Kubernetes notation.

Label selectors support `a`, `!a`, `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, joined by commas; `!=` and `notin`
also match if the label is missing. Field selectors support `=`, `==`, `!=` and only the fields that the resource names: an
unsupported field must be rejected, or it would match everything.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nstance.kube.api import status, values
from nstance.kube.port import Object

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<gone>{_KEY})|(?P<key>{_KEY})"
    r"(?:\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)|\s*(?P<sign>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*))?)\s*"
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")

Labels = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    allowed: frozenset[str] | None = None  # None: any value
    negated: bool = False

    def holds(self, labels: Labels) -> bool:
        found = self.key in labels and (self.allowed is None or labels[self.key] in self.allowed)
        return found != self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """An object matches when every requirement holds."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, body: Object) -> bool:
        labels = values.at(body, ("metadata", "labels")) or {}
        return all(each.holds(labels) for each in self.labels) and all(_field_holds(each, body) for each in self.fields)


EVERYTHING = Selector()


def parse(*, labels: str = "", fields: str = "", selectable: Iterable[str] = ()) -> Selector:
    return Selector(
        tuple(_labels(labels)), tuple(_fields(fields, {*selectable, "metadata.name", "metadata.namespace"}))
    )


def label_matcher(selector: Object | None) -> Callable[[Labels], bool]:
    """The predicate of a LabelSelector. None selects nothing, an empty one everything."""
    if selector is None:
        return lambda labels: False
    terms = [Requirement(key, frozenset([value])) for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        key, operator = each.get("key", ""), each.get("operator")
        allowed = frozenset(each.get("values") or ())
        if operator in ("In", "NotIn"):
            terms.append(Requirement(key, allowed, operator == "NotIn"))
        elif operator in ("Exists", "DoesNotExist"):
            terms.append(Requirement(key, None, operator == "DoesNotExist"))
        else:
            raise status.bad_request(f"{operator!r} is not a valid label selector operator")
    return lambda labels: all(term.holds(labels) for term in terms)


def format_selector(selector: Object | None) -> str:
    """A LabelSelector as text, for `/scale`."""
    if not selector:
        return ""
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for each in selector.get("matchExpressions") or ():
        listed = ",".join(sorted(each.get("values") or ()))
        forms = {"In": f" in ({listed})", "NotIn": f" notin ({listed})", "Exists": "", "DoesNotExist": ""}
        negation = "!" if each.get("operator") == "DoesNotExist" else ""
        terms.append(f"{negation}{each.get('key', '')}{forms.get(str(each.get('operator')), '')}")
    return ",".join(terms)


def _labels(text: str) -> Iterable[Requirement]:
    position = 0
    while text.strip():
        term = _TERM.match(text, position)
        if term is None or (term.end() < len(text) and text[term.end()] != ","):
            raise status.bad_request(
                f"unable to parse requirement: {text!r} is not a label selector at position {position}"
            )
        yield _requirement(term)
        position = term.end() + 1
        if position > len(text):
            return


def _requirement(term: re.Match[str]) -> Requirement:
    if term["absent"]:
        return Requirement(term["gone"], None, negated=True)
    if term["set"]:
        allowed = frozenset(each.strip() for each in term["values"].split(","))
    elif term["sign"]:
        allowed = frozenset([term["value"]])
    else:
        return Requirement(term["key"])
    for each in allowed:
        if not _VALUE.fullmatch(each):
            raise status.bad_request(f"unable to parse requirement: {each!r} is not a label value")
    return Requirement(term["key"], allowed, negated=term["set"] == "notin" or term["sign"] == "!=")


def _fields(text: str, selectable: set[str]) -> Iterable[Requirement]:
    for term in filter(None, text.split(",")):
        matched = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", term.strip())
        if matched is None:
            raise status.bad_request(f"invalid selector: {text!r}; can't understand {term!r}")
        key, sign, value = matched.groups()
        if key not in selectable:
            raise status.bad_request(f"field label not supported: {key}")
        yield Requirement(key, frozenset([value]), sign == "!=")


def _field_holds(requirement: Requirement, body: Object) -> bool:
    value = values.at(body, requirement.key.split("."), "")
    if requirement.key == "source" and isinstance(value, dict):  # of an Event: its component
        value = value.get("component", "")
    if requirement.key == "spec.unschedulable" and value == "":
        value = False
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return (shown in (requirement.allowed or ())) != requirement.negated
