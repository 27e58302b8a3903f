"""Row 12: the time from scaling a pool in Kubernetes until the shard has the new size.

Real processes: a server (with storage in files), dev-k8s, the operator. Measured from before the PATCH of the scale
subresource is sent (as `kubectl scale` does) until the server reports the new size of the group to its watchers.
"""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from bench.operator_site import Site, site
from bench.pair import SHARD, Pair, put_config
from bench.rows import Row, percentile, spread

GROUP, POOL = "web", "nstance-web"
SCALES = 200
KEY = "thisisatest32bytekey123456789012"


class _Server(Pair):
    def config(self) -> str:
        settings = json.loads(super().config())
        settings["cluster"]["secrets"]["encryption_key"]["source"] = "NSTANCE_ENCRYPTION_KEY"
        settings["shard"]["subnet_pools"] = {"main": ["subnet-1"]}
        settings["templates"] = {"web": {"kind": "web"}}
        settings["groups"] = {"default": {GROUP: {"template": "web", "size": 0}}}
        return json.dumps(settings)


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as name:
        dir = Path(name)
        bucket = dir / "bucket"
        server = _Server(dir, ("--storage=file", f"--bucket={bucket}"))
        put_config(bucket, server)
        try:
            async with site(dir) as here:
                await server.start("a", {"NSTANCE_ENCRYPTION_KEY": KEY})
                await server.until_acts("a")
                await here.create_inputs(bucket, "--key-provider=env", NSTANCE_ENCRYPTION_KEY=KEY)
                shard = {f"{name}_addr": f"127.0.0.1:{server.port('a', name)}" for name in ("registration", "operator")}
                await here.start_operator({SHARD: shard})
                took = await _measure(here, bucket, shard)
            yield Row(
                number="12",
                what="pool scaled in Kubernetes → server has it, p99",
                value=1000 * percentile(took, 0.99),
                unit="ms",
                goal=100.0,
                detail=spread([1000 * each for each in took], "ms"),
            )
        finally:
            await server.close()


async def _measure(here: Site, bucket: Path, shard: dict[str, str]) -> list[float]:
    await here.until_imported(1)
    async with here.listening(bucket, {SHARD: shard}) as listener:
        sizes = [1 + number % 2 for number in range(SCALES)]
        return [await here.scale(listener, POOL, size, [(SHARD, GROUP, size)]) for size in sizes]
