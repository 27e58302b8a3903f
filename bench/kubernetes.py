"""Row 12: the time from scaling a pool in Kubernetes until the shard has the new size.

Real processes: a server (with storage in files), dev-k8s, the operator. Measured from before the PATCH of the scale
subresource is sent (as `kubectl scale` does) until the server reports the new size of the group to its watchers.
"""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from bench import operator_site
from bench.pair import SHARD, Pair, put_config
from bench.rows import Row, percentile, spread

POOL = "nstance-web"
SCALES = 200


class _Server(Pair):
    def config(self) -> str:
        settings = json.loads(super().config())
        settings["shard"]["subnet_pools"] = {"main": ["subnet-1"]}
        settings["templates"] = {"web": {"kind": "web"}}
        settings["groups"] = {"default": {"web": {"template": "web", "size": 0}}}
        return json.dumps(settings)


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as name:
        dir = Path(name)
        bucket = dir / "bucket"
        server = _Server(dir, ("--storage=file", f"--bucket={bucket}"))
        put_config(bucket, server)
        try:
            await server.start("a")
            await server.until_acts("a")
            address = f"127.0.0.1:{server.port('a', 'registration')}"
            async with operator_site.running(dir, bucket, {SHARD: address}) as site, site.observe() as sizes:
                took = []
                for number in range(SCALES):
                    sizes.clear()
                    size = 1 + number % 2
                    began = await site.scale(POOL, size)
                    took.append(1000 * (await sizes.wait("web", {SHARD: size}) - began))
            yield Row(
                number="12",
                what="pool scaled in Kubernetes → server has it, p99",
                value=percentile(took, 0.99),
                unit="ms",
                goal=100.0,
                detail=spread(took, "ms"),
            )
        finally:
            await server.close()
