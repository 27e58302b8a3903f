"""`make soak`: as many VMs as an hour of 36 VMs a minute, as fast as possible. Exits with 1 if the leader leaks memory."""

import sys

import uvloop

from bench.churn import NOISE, Sample, bytes_kept, churning

VMS = 36 * 60
SAMPLES = 12


async def soak(vms: int) -> float:
    samples: list[Sample] = []
    async with churning() as churn:
        for _ in range(SAMPLES):
            await churn.replace(vms // SAMPLES)
            samples.append(await churn.sample())
            print(samples[-1], flush=True)
    return bytes_kept(samples[SAMPLES // 3 :])  # caches are full by then


def main() -> None:
    found = uvloop.run(soak(int(sys.argv[1]) if len(sys.argv) > 1 else VMS))
    print(f"{found:.0f} bytes kept per VM; up to {NOISE:.0f} are noise")
    sys.exit(found > NOISE)


if __name__ == "__main__":
    main()
