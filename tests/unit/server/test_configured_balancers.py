"""Which load balancers of a configuration a server can ask."""

import json

import pytest

from nstance.config import load
from nstance.providers.port import LoadBalancer, Webhook
from nstance.server.cloud.configured_balancers import configured_balancers

DOCUMENT = {
    "cluster": {"id": "x"},
    "shard": {"infra": {"provider": "memory"}},
    "load_balancers": {
        "cloud": {"provider": "memory"},
        "other": {"provider": "aws", "target_group_arns": ["arn:x"]},
        "hook": {
            "provider": "webhook",
            "url": "https://lb.internal/m",
            "secret": "s",
            "auth": "token",
            "timeout": "2s",
        },
        "list": {"provider": "file", "path": "/var/lib/members.json", "port": 80},
    },
}
HOOK = LoadBalancer("hook", webhook=Webhook(url="https://lb.internal/m", secret="s", auth="token", timeout=2.0))
LIST = LoadBalancer("list", file="/var/lib/members.json", port=80)


@pytest.mark.parametrize(("of_cloud", "expected"), [(True, [LoadBalancer("cloud"), HOOK, LIST]), (False, [HOOK, LIST])])
def test_webhooks_and_files_work_with_every_provider(of_cloud: bool, expected: list[LoadBalancer]) -> None:
    assert configured_balancers(load.load(json.dumps(DOCUMENT)), of_cloud=of_cloud) == expected
