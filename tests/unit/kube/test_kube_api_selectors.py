"""Selectors in Kubernetes' notation: what they match, and what they refuse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.kube.api import selectors, status

LABELS = {"app": "web", "tier": "front", "nstance.dev/group": "test"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app", True),
        ("db", False),
        ("!db", True),
        ("!app", False),
        ("app=web", True),
        ("app==web", True),
        ("app=db", False),
        ("app!=db", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db,cache)", True),
        ("missing notin (a)", True),
        ("app=web,tier=front", True),
        ("app=web, tier = back", False),
        ("nstance.dev/group=test", True),
        ("app in (web),!db,tier", True),
        ("app=", False),
        ("missing in ()", False),
    ],
)
def test_label_selectors(text: str, matches: bool) -> None:
    assert selectors.parse(labels=text).matches({"metadata": {"labels": LABELS}}) is matches


@pytest.mark.parametrize("text", ["app=web=x", "app in web", "=x", "app,,x", "a b", "app in (we b)", "!", "app!", "x,"])
def test_what_is_no_label_selector_is_refused(text: str) -> None:
    """Otherwise it would select too much, and a deletion by selector would take it all."""
    with pytest.raises(status.ApiError, match="unable to parse") as caught:
        selectors.parse(labels=text)
    assert caught.value.code == 400


POD = {
    "metadata": {"name": "a", "namespace": "default"},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("metadata.name=a", True),
        ("metadata.name==b", False),
        ("metadata.namespace=default,spec.nodeName=n1", True),
        ("spec.nodeName=n1,status.phase!=Running", False),
        ("status.phase!=Failed", True),
        ("spec.unschedulable=false", True),
        ("spec.unschedulable=true", False),
    ],
)
def test_field_selectors(text: str, matches: bool) -> None:
    fields = ("spec.nodeName", "status.phase", "spec.unschedulable")
    assert selectors.parse(fields=text, selectable=fields).matches(POD) is matches


@pytest.mark.parametrize(
    ("text", "message"), [("spec.x=1", "not supported: spec.x"), ("metadata.name", "can't understand")]
)
def test_unsupported_fields_are_rejected(text: str, message: str) -> None:
    with pytest.raises(status.ApiError, match=message):
        selectors.parse(fields=text)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "db", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "db", "operator": "Exists"}]}, False),
    ],
)
def test_selectors_inside_objects(selector: dict[str, object] | None, matches: bool) -> None:
    assert selectors.label_matcher(selector)(LABELS) is matches
    if selector is not None:
        assert (
            selectors.parse(labels=selectors.format_selector(selector)).matches({"metadata": {"labels": LABELS}})
            is matches
        )


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    code = 400
    try:
        selectors.parse(labels=text, fields=text)
    except status.ApiError as refused:
        code = refused.code
    assert code == 400
