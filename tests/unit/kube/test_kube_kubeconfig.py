"""Every way to the API server, and a clear word where there is none."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nstance.kube import kubeconfig
from nstance.kube.kubeconfig import Access, ExecPlugin, KubeconfigError

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "get-token"}


def config(
    cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, context: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://k8s:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def parse(document: object) -> Access:
    return kubeconfig.parse(yaml.safe_dump(document).encode())


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_everything_in_one_text() -> None:
    access = parse(
        config(
            {"certificate-authority-data": encoded("CA"), "tls-server-name": "other", "proxy-url": "http://proxy:3128"},
            {"client-certificate-data": encoded("CERT"), "client-key-data": encoded("KEY"), "token": "t0ken"},
            {"namespace": "somewhere"},
        )
    )
    assert access == Access(
        server="https://k8s:6443",
        namespace="somewhere",
        ca=b"CA",
        tls_server_name="other",
        proxy="http://proxy:3128",
        certificate=b"CERT",
        key=b"KEY",
        token="t0ken",
    )


def test_secrets_are_in_no_repr() -> None:
    user = {"client-certificate-data": encoded("SECRET"), "client-key-data": encoded("SECRET"), "token": "SECRET"}
    assert "SECRET" not in repr(parse(config({"proxy-url": "http://me:SECRET@proxy"}, user)))
    plugin = ExecPlugin(command="x", api_version="v1", arguments=("SECRET",), environment=(("A", "SECRET"),))
    assert "SECRET" not in repr(plugin)


def test_files_count_from_the_file_that_names_them(tmp_path: Path) -> None:
    user = {
        "client-certificate": "pki/cert",
        "client-key": "/abs/key",
        "tokenFile": "token",
        "exec": {**EXEC, "command": "./bin/x"},
    }
    path = write(tmp_path / "kube" / "config", config({"certificate-authority": "ca.crt"}, user))
    access = kubeconfig.load([path])
    folder = tmp_path / "kube"
    assert (access.ca, access.certificate, access.key) == (folder / "ca.crt", folder / "pki/cert", Path("/abs/key"))
    assert access.token == folder / "token"
    assert access.plugin is not None
    assert access.plugin.command == str(folder / "bin/x")


def test_a_plugin(tmp_path: Path) -> None:
    described = {
        **EXEC,
        "args": ["a", "b"],
        "env": [{"name": "N", "value": "V"}],
        "provideClusterInfo": True,
        "installHint": "install it",
        "interactiveMode": "IfAvailable",
    }
    access = kubeconfig.load([write(tmp_path / "config", config({}, {"exec": described}))])
    assert access.plugin == ExecPlugin(
        command="get-token",
        api_version="client.authentication.k8s.io/v1",
        arguments=("a", "b"),
        environment=(("N", "V"),),
        provide_cluster_info=True,
        hint="install it",
    )


def test_the_first_of_several_files_wins(tmp_path: Path) -> None:
    """As kubectl merges KUBECONFIG; files that do not exist are passed over."""
    first = {"current-context": "main", "contexts": config()["contexts"]}
    second = config({"server": "https://second"}, {"token": "second"})
    third = config({"server": "https://third"}, {"token": "third"})
    paths = [
        write(tmp_path / "1", first),
        tmp_path / "missing",
        write(tmp_path / "2", second),
        write(tmp_path / "3", {**third, "current-context": "other"}),
    ]
    environment = {"KUBECONFIG": ":".join(map(str, paths))}
    access = kubeconfig.find(environment=environment, home=tmp_path)
    assert (access.server, access.token) == ("https://second", "second")


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """Flag, KUBECONFIG, service account, home: in this order."""
    pod = tmp_path / "pod"
    for file, text in (("token", "t"), ("ca.crt", "c"), ("namespace", "ns\n")):
        (pod / file).parent.mkdir(exist_ok=True)
        (pod / file).write_text(text)
    flag = write(tmp_path / "flag", config({"server": "https://flag"}))
    named = write(tmp_path / "named", config({"server": "https://named"}))
    write(tmp_path / ".kube" / "config", config({"server": "https://home"}))
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}

    def server(path: str, environment: dict[str, str]) -> str:
        found = kubeconfig.find(path, environment=environment, home=tmp_path, service_account=pod)
        return found.server

    assert server(str(flag), {"KUBECONFIG": str(named), **in_pod}) == "https://flag"
    assert server("", {"KUBECONFIG": str(named), **in_pod}) == "https://named"
    assert server("", in_pod) == "https://10.0.0.1:6443"
    assert server("", {}) == "https://home"


def test_the_service_account(tmp_path: Path) -> None:
    access = kubeconfig.in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert access == Access(
        server="https://[fd00::1]:443", namespace="default", ca=tmp_path / "ca.crt", token=tmp_path / "token"
    )


def test_another_context(tmp_path: Path) -> None:
    document = config()
    document["contexts"].append({"name": "other", "context": {"cluster": "c", "namespace": "elsewhere"}})
    document["current-context"] = "other"
    assert kubeconfig.load([write(tmp_path / "config", document)]).namespace == "elsewhere"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param([1], "expected a mapping, found a list", id="list"),
        pytest.param({}, "expected a current-context", id="empty"),
        pytest.param({**config(), "current-context": "x"}, "expected the context 'x', found main", id="context"),
        pytest.param({**config(), "clusters": []}, "its cluster 'c' is not defined", id="cluster"),
        pytest.param({**config(), "users": []}, "its user 'u' is not defined", id="user"),
        pytest.param({**config(), "users": {}}, None, id="no users at all is the same"),
        pytest.param({**config(), "users": "x"}, "expected users to be a list", id="users"),
        pytest.param({**config(), "clusters": [{"cluster": {}}]}, "has no name", id="nameless"),
        pytest.param(config({"server": "k8s:6443"}), "expected a server such as", id="scheme"),
        pytest.param(config({"server": "https://k8s:x"}), "expected a server such as", id="port"),
        pytest.param(config({"server": 7}), "expected server to be a string", id="number"),
        pytest.param(config({"certificate-authority-data": "!"}), "is not base64", id="base64"),
        pytest.param(config({"insecure-skip-tls-verify": "yes"}), "true or false", id="flag"),
        pytest.param(
            config({"insecure-skip-tls-verify": True, "certificate-authority-data": encoded("CA")}),
            "exclude each other",
            id="insecure",
        ),
        pytest.param(config({}, {"client-key-data": encoded("K")}), "found only one of them", id="key alone"),
        pytest.param(config({}, {"as": "admin"}), "as is not supported", id="impersonation"),
        pytest.param(config({}, {"auth-provider": {"name": "gcp"}}), "not supported", id="auth provider"),
        pytest.param(config({}, {"tokenFile": "/etc/passwd"}), "names a file", id="a Secret names a file"),
        pytest.param(config({}, {"exec": EXEC}), "exec plugins are not allowed", id="a Secret names a program"),
    ],
)
def test_problems_are_reported(document: object, text: str | None) -> None:
    with pytest.raises(KubeconfigError, match=text):
        parse(document)


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        ("x", "to be a mapping"),
        ({**EXEC, "command": ""}, "expected a command"),
        ({**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}, "expected apiVersion to be one of"),
        ({**EXEC, "interactiveMode": "Always"}, "there is no terminal"),
        ({**EXEC, "args": "x"}, "expected args to be"),
        ({**EXEC, "env": [{"name": "x"}]}, "expected env to be"),
    ],
)
def test_problems_of_a_plugin_are_reported(plugin: object, text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "config", config({}, {"exec": plugin}))
    with pytest.raises(KubeconfigError, match=text):
        kubeconfig.load([path])


def test_missing_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(KubeconfigError, match=r"failed to read kubeconfig .*missing: No such file"):
        kubeconfig.find(str(missing), environment={}, home=tmp_path)
    with pytest.raises(KubeconfigError, match="KUBECONFIG is"):
        kubeconfig.find(environment={"KUBECONFIG": str(missing)}, home=tmp_path)
    with pytest.raises(KubeconfigError, match="found none of them"):
        kubeconfig.find(environment={}, home=tmp_path)


def test_a_broken_text_is_not_quoted() -> None:
    with pytest.raises(KubeconfigError, match="not YAML at line 3") as caught:
        kubeconfig.parse(b"users:\n- token: 's3cret\n")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "user", "exec", "x"]), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["clusters", "users", "contexts", "current-context"])


def problem_of(content: bytes) -> str:
    """What it says about it; nothing if it takes it."""
    try:
        kubeconfig.parse(content)
    except KubeconfigError as problem:
        return str(problem)
    return ""


@given(st.binary(max_size=200) | st.dictionaries(NAMES, JSON).map(lambda value: json.dumps(value).encode()))
def test_any_text_is_refused_with_a_clear_word(content: bytes) -> None:
    assert problem_of(content).startswith("the kubeconfig")


@given(st.sampled_from(["cluster", "user", "context"]), JSON)
def test_any_entry_is_an_access_or_a_clear_word(section: str, value: object) -> None:
    document = config()
    document[section + "s"][0][section] = value
    word = problem_of(yaml.safe_dump(document).encode())
    assert not word or word.startswith("the kubeconfig")
