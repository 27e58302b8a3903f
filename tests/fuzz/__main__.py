"""`make fuzz`: look for inputs that break the law, for as long as there is time.

With atheris (`pip install -e '.[fuzz]'`) the search is guided by what code an input reaches, in a child process that ends
with its first find; without it, Hypothesis changes the corpus at random. A find is made small and put into the corpus,
where the tests replay it for ever after.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz import law, minimise
from fuzz.mutation import ANYWHERE, mutated

REACHED = Path("temp/fuzz")  # inputs that reached something new: where the next run goes on
INSTRUMENTED = ["nstance"]
BATCH = 200
GRACE = 180.0  # to begin: code is rewritten so that it can be watched


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="in all (default 60)")
    parser.add_argument("--target", help="one of them; all in turn if left out")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="judge this one input of the target, and nothing else"
    )
    parser.add_argument("--seed", type=int, default=None, help="begin at this seed instead of a random one")
    parser.add_argument("--random", action="store_true", help="without coverage, also where atheris is there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if options.child:
        return _guided_child(options.target, int(options.seconds), _seed(options.seed))
    targets = law.load_targets()
    if options.target and options.target not in targets:
        parser.error(f"there is no target {options.target}; there are {', '.join(targets)}")
    chosen = [targets[options.target]] if options.target else list(targets.values())
    if options.replay is not None:
        if len(chosen) != 1:
            parser.error("--replay needs --target")
        law.judge(chosen[0], law.entry(options.replay))
        print("taken or refused as it should be")
        return 0
    guided = importlib.util.find_spec("atheris") is not None and not options.random
    print(
        f"{len(chosen)} targets, {options.seconds:g} s, {'guided by coverage' if guided else 'at random'}", flush=True
    )
    found = 0
    for target in chosen:
        find = (_guided if guided else _at_random)(target, options.seconds / len(chosen), _seed(options.seed))
        if find is not None:
            found += 1
            _keep(target, find)
    for close in law.CLOSING:
        close()
    return 1 if found else 0


def _seed(given: int | None) -> int:
    return given if given is not None else int.from_bytes(os.urandom(4), "big")


def _keep(target: law.Target, data: bytes) -> None:
    small = minimise.smallest(target, data)
    path = target.corpus / f"found-{hashlib.sha256(small).hexdigest()[:8]}"
    path.write_bytes(small)
    try:
        law.judge(target, small)
        print(f"{target.name}: broke the law once, and not again: it depends on what came before; kept as {path}")
    except law.Broken as broken:
        print(f"{broken}\nkept as {path} ({len(small)} bytes); give it a descriptive name")
    where = os.path.relpath(path)
    print(f"to see it again: make fuzz TARGET={target.name} REPLAY={where}", flush=True)


def _at_random(target: law.Target, seconds: float, start: int) -> bytes | None:
    seeds = [data for data in target.seeds().values() if len(data) < 20_000]
    until, count = time.monotonic() + seconds, 0
    last = b""
    while time.monotonic() < until:

        @seed(start + count)
        @settings(
            max_examples=BATCH,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(mutated(target, seeds))
        def run(data: bytes) -> None:
            nonlocal last
            last = data
            law.judge(target, data)

        try:
            run()
        except law.Broken:
            return last
        count += 1
    print(f"{target.name}: {count * BATCH} inputs, seeds {start} to {start + count - 1}", flush=True)
    return None


def _guided(target: law.Target, seconds: float, start: int) -> bytes | None:
    """The child ends by itself; it is ended if it does not."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fuzz", "--child", "--target", target.name]
        command += ["--seconds", str(max(1, int(seconds))), "--seed", str(start)]
        log = Path(folder) / "log"
        with log.open("wb") as out:
            child = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "FUZZ_FINDS": folder}
            )
            try:
                child.wait(seconds + GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        finds = sorted(Path(folder).glob("*-*"))
        lines = log.read_text(errors="replace").splitlines()
        done = next((line for line in reversed(lines) if line.startswith("Done ")), "")
        if not finds and child.returncode != 0:
            print("\n".join(lines[-20:]))
            raise SystemExit(f"{target.name}: the search itself failed with {child.returncode}")
        print(f"{target.name}: {done or 'a find'}", flush=True)
        return finds[0].read_bytes() if finds else None


def _guided_child(name: str, seconds: int, start: int) -> int:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = law.load_target(name)
    reached = REACHED / name
    reached.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder)
        for entry, data in target.seeds().items():
            (seeds / entry).write_bytes(data[: law.LONGEST])
        words = seeds.parent / f"{seeds.name}.words"
        lines = (
            "".join(f"\\x{byte:02x}" for byte in word) for word in (*ANYWHERE, *target.words) if 1 <= len(word) <= 64
        )
        words.write_text("".join(f'"{line}"\n' for line in lines))
        arguments = [f"-max_total_time={seconds}", f"-seed={start % 2**32}", f"-dict={words}", f"-max_len={1 << 14}"]
        arguments += [
            f"-artifact_prefix={os.environ['FUZZ_FINDS']}/",
            "-timeout=60",
            "-rss_limit_mb=2048",
            "-print_final_stats=0",
        ]
        atheris.Setup(["fuzz", *arguments, str(reached), str(seeds)], lambda data: law.judge(target, data))
        with contextlib.suppress(SystemExit):
            atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
