"""Signatures are compared with those of AWS's own SDK."""

import datetime
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SdkCredentials

from nstance.aws import signing

NOW = 1_763_195_400.0


@pytest.mark.parametrize("token", ["", "session token/+="])
@pytest.mark.parametrize(
    ("url", "service", "body"),
    [
        ("https://ec2.eu-west-1.amazonaws.com/", "ec2", b"Action=RunInstances&Version=2016-11-15"),
        ("http://127.0.0.1:5555/", "secretsmanager", b'{"SecretId": "\xc3\xa4"}'),
        ("https://sts.us-east-1.amazonaws.com/", "sts", b""),
    ],
)
def test_signatures_are_those_of_the_sdk(
    url: str, service: str, body: bytes, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "A.B  C "}
    request = signing.Request(url=url, headers=headers, body=body, service=service, region="eu-west-1")
    ours = signing.sign(request, signing.Credentials("AKIDEXAMPLE", "secret", token), now=NOW)

    when = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_: when, raising=False)
    theirs: Any = AWSRequest("POST", url, headers=dict(headers), data=body)
    SigV4Auth(SdkCredentials("AKIDEXAMPLE", "secret", token or None), service, "eu-west-1").add_auth(theirs)
    assert ours["x-amz-date"] == theirs.headers["X-Amz-Date"]
    assert ours["authorization"] == theirs.headers["Authorization"]


def test_credentials_do_not_print_their_secrets() -> None:
    shown = repr(signing.Credentials("AKIDEXAMPLE", "hidden-secret", "hidden-token"))
    assert "AKIDEXAMPLE" in shown
    assert "hidden" not in shown
