"""kustomize overlays of `config/default` with another namespace, prefix or suffix."""

from pathlib import Path

import pytest

from component.packaging.references import broken_references
from component.packaging.rendering import kustomize, overlay
from support.k8s_server import KUBECTL, NO_KUBECTL

pytestmark = pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL)

OVERLAYS: dict[str, dict[str, object]] = {
    "as it is": {},
    "namespace": {"namespace": "tenant-a"},
    "prefix": {"namePrefix": "a-"},
    "suffix": {"nameSuffix": "-b"},
    "all": {
        "namespace": "tenant-a",
        "namePrefix": "a-",
        "nameSuffix": "-b",
        "labels": [{"pairs": {"team": "a"}, "includeSelectors": True}],
    },
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_reference_leads_somewhere(name: str, tmp_path: Path) -> None:
    settings = OVERLAYS[name]
    manifests = kustomize(overlay(tmp_path / "overlay", settings))
    assert broken_references(manifests, str(settings.get("namespace", "nstance-system"))) == []
    [deployment] = [each for each in manifests if each["kind"] == "Deployment"]
    expected = f"{settings.get('namePrefix', '')}nstance-operator{settings.get('nameSuffix', '')}"
    assert deployment["metadata"]["name"] == expected


def test_an_overlay_of_an_overlay(tmp_path: Path) -> None:
    one = overlay(tmp_path / "one", {"namePrefix": "b-", "namespace": "one"})
    manifests = kustomize(overlay(tmp_path / "two", {"namePrefix": "a-", "namespace": "two"}, one))
    assert broken_references(manifests, "two") == []
    assert "a-b-nstance-operator" in {each["metadata"]["name"] for each in manifests}


def test_definitions_keep_their_names(tmp_path: Path) -> None:
    manifests = kustomize(overlay(tmp_path / "overlay", OVERLAYS["all"]))
    for each in manifests:
        if each["kind"] == "CustomResourceDefinition":
            assert each["metadata"]["name"] == f"{each['spec']['names']['plural']}.{each['spec']['group']}"


def test_two_overlays_share_only_definitions(tmp_path: Path) -> None:
    found = []
    for name in ("tenant-a", "tenant-b"):
        settings: dict[str, object] = {"namespace": name, "namePrefix": f"{name}-"}
        manifests = kustomize(overlay(tmp_path / name, settings))
        found.append(
            {
                (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
                for each in manifests
                if each["kind"] != "CustomResourceDefinition"
            }
        )
    assert found[0] & found[1] == set()


@pytest.mark.parametrize("left_behind", ["ServiceAccount", "Service", "ValidatingWebhookConfiguration", "Role"])
def test_the_check_finds_a_reference_that_is_left_behind(left_behind: str, tmp_path: Path) -> None:
    """Otherwise the tests above could not fail."""
    manifests = kustomize(overlay(tmp_path / "overlay", {}))
    for each in manifests:
        if each["kind"] == left_behind:
            each["metadata"]["name"] = f"moved-{each['metadata']['name']}"
    assert broken_references(manifests, "nstance-system")
