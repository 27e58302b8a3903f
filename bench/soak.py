"""`make soak`: an hour of churn at 36 VMs a minute, as fast as they can be made. Exit 1 if the leader keeps something."""

import sys

import uvloop

from bench.churn import NOISE, Sample, churning, kept

VMS = 36 * 60
SAMPLES = 12


async def soak(vms: int) -> float:
    samples: list[Sample] = []
    async with churning() as churn:
        for _ in range(SAMPLES):
            await churn.replace(vms // SAMPLES)
            samples.append(await churn.sample())
            print(samples[-1], flush=True)
    return kept(samples[SAMPLES // 3 :])  # caches are full by then


def main() -> None:
    found = uvloop.run(soak(int(sys.argv[1]) if len(sys.argv) > 1 else VMS))
    print(f"{found:.0f} bytes kept for each VM ever made; at most {NOISE:.0f} are noise")
    sys.exit(found > NOISE)


if __name__ == "__main__":
    main()
