"""The OpenAPI descriptions, read by a validator of others."""

from pathlib import Path

import pytest

from component.http_world import get_json, served
from component.whole_server import World


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/openapi.json"])
async def test_a_public_validator_accepts_the_description(tmp_path: Path, path: str) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="pip install -e '.[ui]'")
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world) as browser:
            validator.validate(await get_json(browser, path))
