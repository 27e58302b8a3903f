"""What a whole server says of itself to Prometheus."""

from pathlib import Path

import pytest

from component.whole_server import World


@pytest.mark.parametrize("usable", [True, False])
async def test_f41_whether_the_cache_is_on_disk_can_be_watched(tmp_path: Path, usable: bool) -> None:
    if not usable:
        (tmp_path / "a").write_text("a file where the cache directory should be")
    async with World(tmp_path, agents=False) as world:
        running = await world.start()  # leads in either case
        wanted = f"nstance_cache_on_disk {float(usable)}\n".encode()
        await running.until(lambda: wanted in running.server.metrics.render())
        assert b"nstance_cache_dropped_total 0.0" in running.server.metrics.render()
