"""HTTP proxies from the usual variables."""

import pytest
from aiohttp import web

from nstance.aws.client import EC2, AwsClient
from nstance.aws.proxies import proxy_for
from nstance.clock import SystemClock

URL = "https://ec2.eu-west-1.amazonaws.com/"


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        (URL, {}, None),
        (URL, {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        (URL, {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        (URL, {"HTTPS_PROXY": ""}, None),
        (URL, {"HTTP_PROXY": "http://proxy:3128"}, None),
        ("http://10.0.0.1/", {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        (URL, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1, .amazonaws.com"}, None),
        ("http://169.254.169.254/", {"HTTP_PROXY": "http://proxy:3128", "no_proxy": "169.254.169.254"}, None),
        (URL, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, None),
    ],
)
def test_the_variables_choose_the_proxy(url: str, environment: dict[str, str], expected: str | None) -> None:
    assert proxy_for(url, environment) == expected


async def test_calls_go_through_the_proxy() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.url.host}{request.path}")
        return web.Response(text="<r><a>1</a></r>")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    environment = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "HTTP_PROXY": f"http://127.0.0.1:{runner.addresses[0][1]}",
    }
    client = AwsClient(
        region="eu-west-1", clock=SystemClock(), endpoint_url="http://ec2.invalid", environment=environment
    )
    try:
        assert await client.query(EC2, "DescribeInstances", {}) == {"a": "1"}
    finally:
        await client.close()
        await runner.cleanup()
    assert asked == ["ec2.invalid/"]
