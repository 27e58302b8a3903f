"""Tokens that rotate, plugins that are programs, and TLS both ways."""

import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nstance.clock import SystemClock
from nstance.kube import credentials, errors, kinds
from nstance.kube.credentials import Credentials
from nstance.kube.http import HttpKube
from nstance.kube.kubeconfig import Access, ExecPlugin

V1 = "client.authentication.k8s.io/v1"


class HandClock(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


def moment(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- files


async def test_a_rotated_token_is_read_after_a_while(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", HandClock()
    file.write_text("one\n")
    creds = Credentials(Access(server="http://k8s", token=file), clock)
    first = await creds.current()
    assert first.token == "one"
    assert "token" not in repr(first)
    file.write_text("two\n")
    assert await creds.current() is first, "it is not read for each request"
    clock.now += credentials.REREAD_SECONDS
    assert (await creds.current()).token == "two"


async def test_a_refused_proof_is_looked_for_anew_but_the_same_one_is_known(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    creds = Credentials(Access(server="http://k8s", token=file), HandClock())
    first = await creds.current()
    file.write_text("two")
    creds.forget(first)
    second = await creds.current()
    assert second.token == "two"
    creds.forget(first)  # a late refusal of what is not used any more
    assert await creds.current() is second


async def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    creds = Credentials(Access(server="http://k8s", token=tmp_path / "token"), HandClock())
    with pytest.raises(errors.UnavailableError, match="token could not be read: No such file"):
        await creds.current()


async def test_a_token_with_line_breaks_inside_is_refused_by_name() -> None:
    kube = HttpKube(Access(server="http://127.0.0.1:1", token="a\r\nX-Evil: 1"), SystemClock())
    try:
        with pytest.raises(errors.UnavailableError, match="characters that are not allowed in a token"):
            await kube.get(kinds.NODE, "n")
    finally:
        await kube.close()


# ---- plugins


def plugin(tmp_path: Path, program: str, **options: Any) -> ExecPlugin:
    """The program runs in Python, counts its runs and may print `answer(...)`."""
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os, sys\n"
        f"count = open({str(tmp_path / 'runs')!r}, 'a'); count.write('x'); count.close()\n"
        "def answer(version='" + V1 + "', kind='ExecCredential', **status):\n"
        "    print(json.dumps({'apiVersion': version, 'kind': kind, 'status': status}))\n" + program
    )
    return ExecPlugin(
        command=sys.executable, api_version=V1, arguments=("-I", "-S", str(script), "argument"), **options
    )


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text())


async def test_a_plugin_is_asked_once_until_its_answer_expires(tmp_path: Path) -> None:
    clock = HandClock()
    program = f"answer(token='t0ken', expirationTimestamp='{moment(clock.wall() + 600)}')"
    creds = Credentials(Access(server="http://k8s", plugin=plugin(tmp_path, program)), clock)
    proofs = await asyncio.gather(*(creds.current() for _ in range(5)))
    assert {proof.token for proof in proofs} == {"t0ken"}
    clock.now += 500
    await creds.current()
    assert runs(tmp_path) == 1
    clock.now += 80
    await creds.current()
    assert runs(tmp_path) == 2


async def test_the_input_of_a_plugin(tmp_path: Path) -> None:
    program = (
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "answer(token='|'.join([sys.argv[1], os.environ['EXTRA'], json.dumps(info)]))\n"
    )
    given = plugin(tmp_path, program, environment=(("EXTRA", "more"),), provide_cluster_info=True)
    creds = Credentials(Access(server="http://k8s", ca=b"CA", plugin=given), HandClock())
    argument, extra, info = (await creds.current()).token.split("|")
    assert (argument, extra) == ("argument", "more")
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "http://k8s", "certificate-authority-data": "Q0E="}},
    }


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("sys.exit('cannot log in')", "exited with 1: cannot log in"),
        ("print('s3cret')", "printed no"),
        ("answer()", "printed no"),
        ("answer(clientCertificateData='only')", "printed no"),
        ("answer(version='client.authentication.k8s.io/v1beta1', token='s3cret')", "printed no"),
        ("answer(kind='Pod', token='s3cret')", "printed no"),
        ("answer(token='s3cret', expirationTimestamp='soon')", "printed no"),
        ("print('[]')", "printed no"),
    ],
)
async def test_a_plugin_that_fails_is_named_and_not_quoted(tmp_path: Path, program: str, text: str) -> None:
    creds = Credentials(Access(server="http://k8s", plugin=plugin(tmp_path, program)), HandClock())
    with pytest.raises(errors.UnavailableError, match=text) as caught:
        await creds.current()
    assert "s3cret" not in str(caught.value)


async def test_a_plugin_that_is_not_there_comes_with_its_hint() -> None:
    missing = ExecPlugin(command="no-such-plugin", api_version=V1, hint="get it from the shop")
    creds = Credentials(Access(server="http://k8s", plugin=missing), HandClock())
    with pytest.raises(errors.UnavailableError, match=r"no-such-plugin could not be run: No such file.*from the shop"):
        await creds.current()


async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_TIMEOUT_SECONDS", 1.0)
    new, pid = str(tmp_path / "new"), str(tmp_path / "pid")
    program = f"open({new!r}, 'w').write(str(os.getpid())); os.rename({new!r}, {pid!r})\nimport signal; signal.pause()"
    creds = Credentials(Access(server="http://k8s", plugin=plugin(tmp_path, program)), HandClock())
    with pytest.raises(errors.UnavailableError, match="longer than 1 s"):
        await creds.current()
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_plugin_is_asked_again_after_a_401(tmp_path: Path) -> None:
    program = f"answer(token='t%d' % len(open({str(tmp_path / 'runs')!r}).read()))"
    seen: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({}, status=200 if seen[-1] == "Bearer t2" else 401)

    async with serving(answer) as port:
        kube = HttpKube(Access(server=f"http://127.0.0.1:{port}", plugin=plugin(tmp_path, program)), HandClock())
        await kube.get(kinds.NODE, "n")
        await kube.close()
    assert seen == ["Bearer t1", "Bearer t2"]


# ---- TLS


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Authority:
    """A CA as clusters have them: without the extensions that strict verification asks for."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
        self.pem = self._sign(self.key, "kubernetes", authority=True)[0]

    def _sign(self, key: ec.EllipticCurvePrivateKey, name: str, *, authority: bool = False) -> tuple[bytes, bytes]:
        builder = (
            x509.CertificateBuilder()
            .issuer_name(self.name)
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
            .not_valid_after(datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=False)
        )
        if not authority:
            names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(names[: 1 if "." in name else 2]), critical=False
            )
        certificate = builder.sign(self.key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private

    def issue(self, name: str) -> tuple[bytes, bytes]:
        return self._sign(ec.generate_private_key(ec.SECP256R1()), name)

    def server(self, tmp_path: Path, name: str = "server") -> ssl.SSLContext:
        certificate, key = self.issue(name)
        (tmp_path / "server.pem").write_bytes(certificate + key)
        (tmp_path / "ca.pem").write_bytes(self.pem)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_cert_chain(tmp_path / "server.pem")
        return context


async def who(request: web.BaseRequest) -> web.Response:
    """Answers with the name in the client's certificate."""
    assert request.transport is not None
    shown = request.transport.get_extra_info("peercert")
    names = [value for part in (shown or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return web.json_response({"you": names[0] if names else ""})


async def asked(access: Access) -> object:
    kube = HttpKube(access, SystemClock())
    try:
        return (await kube.get(kinds.NODE, "n"))["you"]
    finally:
        await kube.close()


async def test_tls_both_ways(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.issue("robot")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "robot.key").write_bytes(key)
    async with serving(who, authority.server(tmp_path)) as port:
        url = f"https://127.0.0.1:{port}"
        assert await asked(Access(server=url, ca=authority.pem)) == ""
        assert await asked(Access(server=url, ca=tmp_path / "ca.crt", certificate=certificate, key=key)) == "robot"
        assert (
            await asked(Access(server=url, ca=authority.pem, certificate=certificate, key=tmp_path / "robot.key"))
            == "robot"
        )
        assert await asked(Access(server=url, insecure=True)) == ""


async def test_a_server_of_another_authority_is_not_talked_to(tmp_path: Path) -> None:
    authority = Authority()
    async with serving(who, authority.server(tmp_path)) as port:
        url = f"https://127.0.0.1:{port}"
        for access in (Access(server=url), Access(server=url, ca=Authority().pem)):
            with pytest.raises(errors.UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                await asked(access)


async def test_the_server_name_is_checked_and_can_be_set(tmp_path: Path) -> None:
    authority = Authority()
    async with serving(who, authority.server(tmp_path, "k8s.example")) as port:
        access = Access(server=f"https://127.0.0.1:{port}", ca=authority.pem)
        with pytest.raises(errors.UnavailableError, match=r"verify failed|not valid"):
            await asked(access)
        assert await asked(Access(server=access.server, ca=authority.pem, tls_server_name="k8s.example")) == ""


async def test_a_plugins_certificate_is_shown(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.issue("from-plugin")
    program = f"answer(clientCertificateData={certificate.decode()!r}, clientKeyData={key.decode()!r})"
    async with serving(who, authority.server(tmp_path)) as port:
        url = f"https://127.0.0.1:{port}"
        assert await asked(Access(server=url, ca=authority.pem, plugin=plugin(tmp_path, program))) == "from-plugin"


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"ca": b"no PEM"}, "certificate authority is not"),
        ({"ca": b"\xff"}, "certificate authority is not"),
        ({"certificate": b"no PEM", "key": b"s3cret"}, "do not load"),
        ({"ca": Path("/no/such/ca")}, "could not be read"),
    ],
)
async def test_broken_certificates_are_named(broken: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.UnavailableError, match=text) as caught:
        await asked(Access(server="https://127.0.0.1:1", **broken))
    assert "s3cret" not in str(caught.value)


async def test_a_key_that_is_not_the_certificates_is_named() -> None:
    authority = Authority()
    with pytest.raises(errors.UnavailableError, match="do not match"):
        await asked(Access(server="https://x:1", certificate=authority.issue("a")[0], key=authority.issue("b")[1]))
