"""What kubectl prints: paths into objects, ages, and the columns of kinds."""

from typing import Any

import pytest

from nstance.dev.k8s import columns, jsonpath, paths, tables
from nstance.kube.api import builtin_resources
from nstance.kube.api.resources import Served

BODY = {
    "spec": {"size": 3, "shards": ["a", "b"], "with.dots": "x"},
    "metadata": {"name": "n", "annotations": {"example.com/a": "b"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Spot", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.size", [3]),
        ("{.spec.size}", [3]),
        (".spec.missing.deeper", []),
        (".spec.shards", [["a", "b"]]),
        (".spec.shards[0]", ["a"]),
        (".spec.shards[-1]", ["b"]),
        (".spec.shards[5]", []),
        (".spec.shards[*]", ["a", "b"]),
        (r".spec.with\.dots", ["x"]),
        (".metadata.annotations['example.com/a']", ["b"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='Spot')].status", ["False"]),
        ('.status.conditions[?(@.type=="None")].status', []),
        (".status.conditions[?(@.type > 1)]", []),
        (".spec[", []),
    ],
)
def test_paths_into_objects(path: str, found: list[Any]) -> None:
    assert jsonpath.find(BODY, path) == found


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (3600 * 2, "120m"),
        (3600 * 3, "3h"),
        (3600 * 3 + 300, "3h5m"),
        (3600 * 10, "10h"),
        (86400 * 3, "3d"),
        (86400 * 3 + 7200, "3d2h"),
        (86400 * 30, "30d"),
        (86400 * 800, "2y70d"),
    ],
)
def test_ages_as_kubectl_shows_them(seconds: float, shown: str) -> None:
    assert columns.format_duration(seconds) == shown


@pytest.mark.parametrize("resource", builtin_resources.RESOURCES, ids=lambda each: each.id)
def test_every_kind_has_a_table_even_of_odd_objects(resource: Any) -> None:
    served = Served(resource, resource.versions[0])
    odd = {"metadata": {"name": "a", "creationTimestamp": "no time"}, "spec": None, "status": 5}
    shown = tables.table(served, [odd, {"metadata": {}}], meta={}, now=0.0, include="None")
    widths = {len(shown["columnDefinitions"]), *(len(row["cells"]) for row in shown["rows"])}
    assert len(widths) == 1
    assert "Name" in [each["name"] for each in shown["columnDefinitions"]]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/nodes", paths.Target("", "v1", "nodes")),
        ("/api/v1/nodes/n/status", paths.Target("", "v1", "nodes", "", "n", "status")),
        ("/api/v1/namespaces/x", paths.Target("", "v1", "namespaces", "", "x")),
        ("/api/v1/namespaces/x/status", paths.Target("", "v1", "namespaces", "", "x", "status")),
        ("/api/v1/namespaces/x/pods", paths.Target("", "v1", "pods", "x")),
        ("/api/v1/namespaces/x/pods/p/eviction", paths.Target("", "v1", "pods", "x", "p", "eviction")),
        ("/apis/g.io/v1/namespaces/x/things/t", paths.Target("g.io", "v1", "things", "x", "t")),
        ("/apis/g.io/v1/things", paths.Target("g.io", "v1", "things")),
        ("/apis/g.io/v1", None),
        ("/api/v1", None),
        ("/api/v1/namespaces/x/pods/p/a/b", None),
        ("/healthz", None),
    ],
)
def test_what_a_url_names(path: str, target: paths.Target | None) -> None:
    assert paths.parse_path(path) == target
