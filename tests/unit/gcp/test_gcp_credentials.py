"""Tokens for Google Cloud: from the metadata server, a key file or a federation; refreshed before they end."""

import asyncio
import base64
import hashlib
import json
import re
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from nstance.clouds.credentials import RETRY_SECONDS, FreshCredentials
from nstance.clouds.errors import CredentialsError, NotSentError
from nstance.gcp.client import GoogleClient
from nstance.gcp.credentials import Token
from nstance.gcp.endpoints import COMPUTE, SECRETS, STORAGE, endpoint
from nstance.gcp.errors import GoogleError, parse_error
from nstance.objects import errors, gcs
from nstance.objects.port import Key, sign_url
from support.eventually import eventually
from support.gcp.cloud import Cloud, google_cloud
from support.gcp.stand_in import PROJECT, TOKEN, ZONE
from support.hand_clock import HandClock

PATH = f"projects/{PROJECT}/zones/{ZONE}"


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with google_cloud() as made:
        yield made


async def called(cloud: Cloud, **environment: str) -> None:
    client = GoogleClient(clock=HandClock(), environment=cloud.stand_in.environment(**environment))
    try:
        await client.json(COMPUTE, "GET", PATH)
    finally:
        await client.close()


def written(folder: Path, content: Any) -> str:
    path = folder / "credentials.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


async def test_a_key_file_signs_for_its_token(cloud: Cloud, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    url = f"{cloud.stand_in.url}/token"
    content = {
        "type": "service_account",
        "client_email": "server@proj-1.iam.gserviceaccount.com",
        "private_key": pem,
        "private_key_id": "k1",
        "token_uri": url,
        "project_id": "of-the-key",
    }
    path = written(tmp_path, content)
    await called(cloud, GOOGLE_APPLICATION_CREDENTIALS=path)
    (asked,) = cloud.stand_in.exchanges
    head, claims, signature = asked["assertion"].split(".")
    key.public_key().verify(_decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    found = json.loads(_decoded(claims))
    assert (found["iss"], found["aud"]) == (content["client_email"], url)
    assert json.loads(_decoded(head))["kid"] == "k1"
    client = GoogleClient(clock=HandClock(), environment={"GOOGLE_APPLICATION_CREDENTIALS": path})
    assert await client.project() == "of-the-key"


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.parametrize("is_json", [False, True])
async def test_a_federation_exchanges_a_token_and_takes_the_place_of_an_account(
    cloud: Cloud, tmp_path: Path, is_json: bool
) -> None:
    (tmp_path / "subject").write_text('{"id_token": "from-elsewhere"}' if is_json else "from-elsewhere\n")
    form = {"type": "json", "subject_token_field_name": "id_token"} if is_json else {"type": "text"}
    content = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{cloud.stand_in.url}/sts",
        "service_account_impersonation_url": f"{cloud.stand_in.url}/impersonate",
        "credential_source": {"file": str(tmp_path / "subject"), "format": form},
    }
    await called(cloud, GOOGLE_APPLICATION_CREDENTIALS=written(tmp_path, content))
    first, second = cloud.stand_in.exchanges
    assert first["subject_token"] == "from-elsewhere"
    assert first["audience"] == content["audience"]
    assert second["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("no json", "expected credentials as JSON"),
        ({"type": "gdch_service_account"}, "expected credentials of the type"),
        ({"type": "service_account", "private_key": "none"}, "the private key cannot be read"),
        ({"type": "external_account", "credential_source": {"executable": {}}}, "a file or a url"),
        ({"type": "external_account", "credential_source": {"file": "/nowhere"}}, "failed to read"),
        (
            {"type": "external_account", "credential_source": {"url": "http://127.0.0.1:1/", "headers": "odd"}},
            "no answer from http://127.0.0.1:1/",
        ),
    ],
)
async def test_bad_files_say_what_is_wrong(cloud: Cloud, tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(CredentialsError, match=says):
        await called(cloud, GOOGLE_APPLICATION_CREDENTIALS=written(tmp_path, content))


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "ftp://x", "not a url"])
async def test_a_malformed_endpoint_is_an_error_of_ours(cloud: Cloud, url: str) -> None:
    with pytest.raises(NotSentError, match=re.escape(url)):
        await called(cloud, **{COMPUTE.variable: url})


async def test_without_any_credentials_the_error_says_where_they_were_looked_for(cloud: Cloud) -> None:
    with pytest.raises(CredentialsError, match="GOOGLE_APPLICATION_CREDENTIALS is not set, and no answer from"):
        await called(cloud, GCE_METADATA_HOST="127.0.0.1:1")


async def test_a_token_is_fetched_before_it_ends_and_a_failure_is_reported() -> None:
    clock, reports = HandClock(), list[str]()
    tokens = [Token("a", clock.wall() + 1000.0), CredentialsError("away"), Token("b", clock.wall() + 9000.0)]

    async def fetch() -> Token:
        found = tokens.pop(0)
        if isinstance(found, CredentialsError):
            raise found
        return found

    source = FreshCredentials("the token", fetch, clock, refresh_before=225.0, on_failure=reports.append)
    assert (await source.get()).text == "a"
    assert (await source.get()).text == "a"
    await clock.advance(900.0)
    assert (await source.get()).text == "a"
    await eventually(lambda: "still valid: away" in "".join(reports))
    assert (await source.get()).text == "a"
    assert len(tokens) == 1, "not with every call"
    await clock.advance(RETRY_SECONDS)
    assert (await source.get()).text == "a"
    await eventually(lambda: tokens == [])
    assert (await source.get()).text == "b"
    source.reject(await source.get())
    tokens.append(CredentialsError("gone"))
    with pytest.raises(CredentialsError, match="gone"):
        await source.get()
    assert "a" not in repr(Token("secret-token", 0.0)).replace("Token(expires=0.0)", "")


async def test_a_token_service_that_hangs_holds_up_nobody_while_the_token_is_valid() -> None:
    clock, answer = HandClock(), asyncio.Event()
    fetched = list[float]()

    async def fetch() -> Token:
        fetched.append(clock.wall())
        if len(fetched) > 1:
            await answer.wait()
        return Token(f"token {len(fetched)}", clock.wall() + 1000.0)

    source = FreshCredentials("the token", fetch, clock, refresh_before=225.0)
    await source.get()
    await clock.advance(900.0)
    async with asyncio.timeout(5.0):
        found = await asyncio.gather(*(source.get() for _ in range(50)))
    assert {each.text for each in found} == {"token 1"}
    await clock.advance(100.0)
    late = [asyncio.create_task(source.get()) for _ in range(2)]
    await eventually(lambda: len(fetched) == 2)
    late[0].cancel()
    answer.set()
    assert (await late[1]).text == "token 2", "one who gives up takes nothing from the others"
    assert len(fetched) == 2


def test_endpoints_follow_the_usual_variables() -> None:
    assert endpoint(COMPUTE, environment={}) == "https://compute.googleapis.com"
    overridden = {COMPUTE.variable: "https://private.example/compute/v1/"}
    assert endpoint(COMPUTE, environment=overridden) == "https://private.example"
    assert endpoint(COMPUTE, configured="http://x/", environment=overridden) == "http://x"
    assert endpoint(STORAGE, environment={"STORAGE_EMULATOR_HOST": "localhost:4443"}) == "http://localhost:4443"
    assert endpoint(SECRETS, environment={"STORAGE_EMULATOR_HOST": "x"}) == "https://secretmanager.googleapis.com"


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (b'{"error": {"message": "m", "errors": [{"reason": "r"}], "status": "S"}}', "r", "m"),
        (b'{"error": {"message": "m", "status": "S"}}', "S", "m"),
        (b'{"error": "invalid_grant", "error_description": "m"}', "invalid_grant", "m"),
        (b"<html>oops</html>", "", "<html>oops</html>"),
        (b"[1]", "", "[1]"),
        (b'{"error": {"errors": ["x"]}}', "", "no message"),
        (b"[" * 100_000, "", "[" * 200),
    ],
)
def test_errors_of_any_form_are_read(body: bytes, reason: str, message: str) -> None:
    problem = parse_error(403, body)
    assert isinstance(problem, GoogleError)
    assert (problem.reason, problem.message) == (reason, message)


@pytest.mark.parametrize("has_key", [True, False])
async def test_a_url_is_signed_for_one_object(cloud: Cloud, tmp_path: Path, has_key: bool) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = "server@proj-1.iam.gserviceaccount.com"
    content = {"type": "service_account", "client_email": account, "private_key": pem}
    given = {"GOOGLE_APPLICATION_CREDENTIALS": written(tmp_path, content)} if has_key else {}
    store = gcs.GcsStore("dev", environment=cloud.stand_in.environment(**given))
    url = urllib.parse.urlsplit(await sign_url(store, Key("agents/a b.tar.gz"), seconds=900))
    await store.close()
    assert url.path == "/dev/agents/a%20b.tar.gz"
    query, _, signature = url.query.partition("&X-Goog-Signature=")
    values = dict(urllib.parse.parse_qsl(query))
    scope = f"{values['X-Goog-Date'][:8]}/auto/storage/goog4_request"
    assert values["X-Goog-Credential"] == f"{account}/{scope}"
    assert values["X-Goog-Expires"] == "900"
    canonical = f"GET\n{url.path}\n{query}\nhost:{url.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"GOOG4-RSA-SHA256\n{values['X-Goog-Date']}\n{scope}\n{digest}".encode()
    if has_key:
        key.public_key().verify(bytes.fromhex(signature), text, padding.PKCS1v15(), hashes.SHA256())
    else:
        assert bytes.fromhex(signature) == hashlib.sha256(text).digest()


async def test_without_the_right_to_sign_the_error_says_so(cloud: Cloud) -> None:
    cloud.stand_in.denied = {"iam.serviceAccounts.signBlob"}
    store = gcs.GcsStore("dev", environment=cloud.stand_in.environment())
    with pytest.raises(errors.PermissionDeniedError, match="signBlob"):
        await sign_url(store, Key("a"), seconds=900)
    await store.close()
