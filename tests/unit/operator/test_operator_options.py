"""Flags and variables: the document's names and defaults, in Go's spelling and ours."""

from pathlib import Path

import pytest

from nstance.kube.lease import LeaseTimes
from nstance.operator.errors import FatalError
from nstance.operator.options import BindAddress, Endpoint, Environment, Level, Options, parse


def parsed(*arguments: str, **variables: str) -> Options:
    return parse(arguments, variables, version="1")


def test_defaults_are_the_documents() -> None:
    assert parsed() == Options(
        config=Path("/etc/nstance/operator/config.yaml"),
        health=BindAddress("", 8081),
        metrics=None,
        webhook=BindAddress("", 9443),
        webhook_certificates=Path("/tmp/k8s-webhook-server/serving-certs"),
        leader_elect=False,
        kubeconfig="",
        level=Level.INFO,
        json_logs=False,
        environment=Environment(
            namespace="",
            ca_configmap="nstance-cluster-ca",
            cert_secret="nstance-operator-cert",
            key_secret="nstance-operator-key",
            nonce_secret="nstance-operator-nonce",
            endpoint=None,
            service_account="nstance-capi-workload",
        ),
    )


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--config", "a"], "config", Path("a")),
        (["--on-demand-namespaces=team in (a,b)"], "on_demand_namespaces", "team in (a,b)"),
        (["--on-demand-namespaces="], "on_demand_namespaces", ""),
        (["--disable-on-demand-pods"], "on_demand_namespaces", None),
        (["--delete-nodes=false"], "delete_nodes", False),
        (["--delete-nodes=auto"], "delete_nodes", None),
        (
            ["--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=12s"],
            "lease_times",
            LeaseTimes(duration=15.0, deadline=12.0, renew=2.4, retry=2.0),
        ),
        (["--config=a"], "config", Path("a")),
        (["-config=a"], "config", Path("a")),
        (["-config", "a"], "config", Path("a")),
        (["--health-probe-bind-address=127.0.0.1:1"], "health", BindAddress("127.0.0.1", 1)),
        (["--health-probe-bind-address=[::1]:1"], "health", BindAddress("::1", 1)),
        (["--health-probe-bind-address=0"], "health", None),
        (["--metrics-bind-address", ":8080"], "metrics", BindAddress("", 8080)),
        (["-metrics-bind-address=0"], "metrics", None),
        (["--leader-elect"], "leader_elect", True),
        (["--leader-elect=true"], "leader_elect", True),
        (["-leader-elect=T"], "leader_elect", True),
        (["--leader-elect=false"], "leader_elect", False),
        (["--leader-elect=0"], "leader_elect", False),
        (["--leader-elect", "--leader-elect=false"], "leader_elect", False),
        (["--leader-elect", "--config", "a"], "config", Path("a")),
        (["--disable-webhooks"], "webhook", None),
        (["--disable-webhooks=false"], "webhook", BindAddress("", 9443)),
        (["--webhook-cert-path", "/certs"], "webhook_certificates", Path("/certs")),
        (["--kubeconfig=k"], "kubeconfig", "k"),
        (["--zap-log-level=debug"], "level", Level.DEBUG),
        (["--zap-log-level=5"], "level", Level.DEBUG),
        (["--zap-log-level=0"], "level", Level.INFO),
        (["--zap-log-level=ERROR"], "level", Level.ERROR),
        (["--zap-devel"], "level", Level.DEBUG),
        (["--zap-devel", "--zap-log-level=info"], "level", Level.INFO),
        (["--zap-devel=false"], "json_logs", True),
        (["--zap-devel=false", "--zap-encoder=console"], "json_logs", False),
        (["--zap-encoder=json"], "json_logs", True),
        (["--zap-stacktrace-level=error", "--zap-time-encoding=rfc3339nano"], "level", Level.INFO),
    ],
)
def test_flags(arguments: list[str], field: str, value: object) -> None:
    assert getattr(parsed(*arguments), field) == value


@pytest.mark.parametrize(
    "arguments",
    [
        ["--leader-elect=maybe"],
        ["--metrics-bind-address=here"],
        ["--metrics-bind-address=::1:80"],
        ["--metrics-bind-address=:99999"],
        ["--zap-log-level=loud"],
        ["--zap-encoder=xml"],
        ["--on-demand-namespaces=a;b"],
        ["--delete-nodes=maybe"],
        ["--leader-elect-lease-duration=2s"],
        ["--leader-elect-lease-duration=2.5s", "--leader-elect-renew-deadline=1s"],
        ["--leader-elect-lease-duration=3"],
        ["--conf=a"],
        ["--unknown"],
        ["more"],
    ],
)
def test_wrong_flags_end_it_with_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)
    assert ended.value.code == 2
    assert "nstance-operator: error:" in capsys.readouterr().err


def test_help_has_examples_and_all_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("-h")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    for name in ("NAMESPACE", "CA_CONFIGMAP", "CERT_SECRET", "KEY_SECRET", "NONCE_SECRET", "CAPI_ENDPOINT"):
        assert f"NSTANCE_{name}" in shown
    assert "NSTANCE_CAPI_SERVICEACCOUNT" in shown
    assert "NSTANCE_K8S_JSON" in shown
    with pytest.raises(SystemExit):
        parsed("--version")
    assert capsys.readouterr().out == "nstance-operator 1\n"


def test_variables() -> None:
    found = parsed(
        NSTANCE_NAMESPACE="capi",
        NSTANCE_CA_CONFIGMAP="a",
        NSTANCE_CERT_SECRET="b",
        NSTANCE_KEY_SECRET="c",
        NSTANCE_NONCE_SECRET="d.e",
        NSTANCE_CAPI_SERVICEACCOUNT="f",
        NSTANCE_K8S_JSON="true",
    ).environment
    assert (found.namespace, found.ca_configmap, found.cert_secret) == ("capi", "a", "b")
    assert (found.key_secret, found.nonce_secret, found.service_account) == ("c", "d.e", "f")


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("https://api.example.com:6443", Endpoint("api.example.com", 6443)),
        ("https://api.example.com", Endpoint("api.example.com", 443)),
        ("http://127.0.0.1:80/x", Endpoint("127.0.0.1", 80)),
        ("api.example.com", Endpoint("api.example.com", 6443)),
        ("10.0.0.1:443", Endpoint("10.0.0.1", 443)),
        ("https://[fd00::1]:6443", Endpoint("fd00::1", 6443)),
        ("", None),
    ],
)
def test_the_endpoint(text: str, endpoint: Endpoint | None) -> None:
    assert parsed(NSTANCE_CAPI_ENDPOINT=text).environment.endpoint == endpoint


@pytest.mark.parametrize(
    "variables",
    [
        {"NSTANCE_CAPI_ENDPOINT": "https://"},
        {"NSTANCE_CAPI_ENDPOINT": "host:port"},
        {"NSTANCE_NAMESPACE": "Not A Name"},
        {"NSTANCE_CERT_SECRET": "../x"},
        {"NSTANCE_CERT_SECRET": "same", "NSTANCE_KEY_SECRET": "same"},
    ],
)
def test_wrong_variables_are_named(variables: dict[str, str]) -> None:
    with pytest.raises(FatalError, match=next(iter(variables))):
        parsed(**variables)
