"""The operator's webhook over TLS: whom the API server believes, and renewals in time."""

import base64
import io
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp

from component.operator_site import LOOPBACK, Site, running, site
from component.whole_server import CLUSTER
from nstance.clock import SystemClock
from nstance.kube import kinds
from nstance.operator.options import WEBHOOK_CONFIGURATION, Options
from nstance.operator.serving import webhook_certificate
from nstance.operator.serving.webhook_certificate import WebhookCertificate
from nstance.operator.wiring import Operator
from support.eventually import eventually


async def webhook_configuration(here: Site) -> None:
    await here.kube.create(
        kinds.VALIDATING_WEBHOOK,
        {
            "metadata": {"name": WEBHOOK_CONFIGURATION},
            "webhooks": [
                {
                    "name": "validate.infrastructure.nstance.dev",
                    "clientConfig": {"service": {"name": "hook", "namespace": "nstance-system", "path": "/validate"}},
                    "rules": [],
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        },
    )


async def post(operator: Operator, context: ssl.SSLContext, body: Any, path: str = "/validate") -> tuple[int, Any]:
    assert operator.webhook is not None
    address = f"https://127.0.0.1:{operator.webhook.listener.port}{path}"
    data, name = io.BytesIO(json.dumps(body).encode()), "hook.nstance-system.svc"
    async with (
        aiohttp.ClientSession() as session,
        session.post(address, data=data, ssl=context, server_hostname=name) as answer,
    ):
        return answer.status, await answer.json() if answer.content_type == "application/json" else await answer.text()


async def bundle(here: Site) -> str:
    found = await here.kube.get(kinds.VALIDATING_WEBHOOK, WEBHOOK_CONFIGURATION)
    return base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", "")).decode()


async def test_the_webhook_answers_over_tls_that_the_api_server_believes(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await webhook_configuration(here)
        flags = {"webhook": LOOPBACK, "webhook_certificates": tmp_path / "none", "leader_elect": True}
        one, two = here.operator(**flags), here.operator(**flags)
        async with running(one), running(two):
            for operator in (one, two):  # the one that waits for the lease serves too
                await eventually(
                    lambda operator=operator: operator.webhook and operator.webhook.certificate.context  # type: ignore[misc]
                )
            context = ssl.create_default_context(cadata=await bundle(here))
            new = {"spec": {"group": "web", "shards": ["a"], "template": "big"}}
            old = {"spec": {"group": "web", "shards": ["a"]}, "status": {"isStatic": True}}
            asked = {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "request": {
                    "uid": "7",
                    "kind": {"kind": "NstanceMachinePool"},
                    "operation": "UPDATE",
                    "object": new,
                    "oldObject": old,
                },
            }
            for operator in (one, two):
                status, answer = await post(operator, context, asked)
                assert status == 200
                assert answer["response"]["allowed"] is False
                assert answer["response"]["uid"] == "7"
                assert "static" in answer["response"]["status"]["message"]
            assert (await post(one, context, {"kind": "Pod"}))[0] == 400
            assert (await post(one, context, asked, "/elsewhere"))[0] == 404
            assert (await post(one, context, {"kind": "AdmissionReview", "pad": "x" * (2 << 20)}))[0] == 413


class Late(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


async def test_the_serving_certificate_and_its_ca_are_renewed_before_they_end(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await webhook_configuration(here)
        clock = Late()
        made = WebhookCertificate(
            here.kube,
            Options(webhook_certificates=tmp_path / "none"),
            namespace="default",
            cluster=CLUSTER,
            clock=clock,
            rng=here.world.rng,
        )
        first = await made._ensure()
        believed = await bundle(here)
        assert await made._ensure() == first
        clock.ahead = webhook_certificate.CERTIFICATE_LIFE_SECONDS * 0.7
        second = await made._ensure()
        assert second.certificate_pem != first.certificate_pem
        assert await bundle(here) == believed  # the CA is the same
        clock.ahead = webhook_certificate.ca.CA_LIFE * 0.7
        third = await made._ensure()
        assert (await bundle(here)).endswith(believed)
        assert await bundle(here) != believed
        await here.kube.patch(
            kinds.SECRET, webhook_certificate.SECRET, {"data": {"tls.key": "AAAA"}}, namespace="default"
        )
        fourth = await made._ensure()
        assert len({first.certificate_pem, second.certificate_pem, third.certificate_pem, fourth.certificate_pem}) == 4


async def test_a_mounted_certificate_is_used_as_it_is(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        made = WebhookCertificate(
            here.kube,
            Options(webhook_certificates=tmp_path / "none"),
            namespace="default",
            cluster=CLUSTER,
            clock=here.world.clock,
            rng=here.world.rng,
        )
        pair = await made._ensure()
        mounted = tmp_path / "certs"
        mounted.mkdir()
        (mounted / "tls.crt").write_text(pair.certificate_pem)
        (mounted / "tls.key").write_text(pair.key_pem)
        await here.kube.delete(kinds.SECRET, webhook_certificate.SECRET, namespace="default")
        operator = here.operator(webhook=LOOPBACK, webhook_certificates=mounted)
        async with running(operator):
            await eventually(lambda: operator.webhook and operator.webhook.certificate.context)
            assert await here.find(kinds.SECRET, webhook_certificate.SECRET) is None
