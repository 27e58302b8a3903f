"""Bad input of every kind: the corpus, and changes of it. The same every time; `make
fuzz` looks further."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz import law, minimise
from fuzz.mutation import mutated

TARGETS = law.load_targets()
EXAMPLES = 60

# The library warns where it will refuse one day; we refuse today.
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    for close in law.CLOSING:
        close()


@pytest.mark.parametrize("name", TARGETS)
def test_every_entry_of_the_corpus_is_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert len(seeds) >= 5
    for entry, data in seeds.items():
        try:
            law.judge(target, data)
        except law.Broken as broken:
            raise AssertionError(f"{entry}: {broken}") from broken


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_good_is_taken(name: str) -> None:
    """Otherwise a target that refuses everything would look sound."""
    target = TARGETS[name]
    good = {entry: data for entry, data in target.seeds().items() if entry.startswith("good")}
    assert good
    for entry, data in good.items():
        try:
            target.run(data)
        except target.declared as refused:
            raise AssertionError(f"{entry} was refused: {refused}") from refused


@pytest.mark.parametrize("name", TARGETS)
def test_changes_of_the_corpus_are_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = [data for data in target.seeds().values() if len(data) < 20_000]

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(mutated(target, seeds))
    def run(data: bytes) -> None:
        law.judge(target, data)

    run()


# ---- the instrument itself

FEW_MEGABYTES = 16.0


def _example(run: object) -> law.Target:
    return law.Target("example", run, (ValueError,), ())  # type: ignore[arg-type]


def _recurses(data: bytes) -> None:
    _recurses(data)


def _silent(data: bytes) -> None:
    raise ValueError


def _keeps(data: bytes) -> None:
    """Until the process has grown, whatever it held before."""
    held, most = [], law.peak() + 2 * FEW_MEGABYTES
    while law.peak() < most and len(held) < 1000:
        held.append(b"x" * (1 << 20))


def _spins(data: bytes) -> None:
    while True:
        len(data)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda data: {}[0], "KeyError was never declared"),
        (_recurses, "RecursionError was never declared"),
        (_silent, "0 characters"),
        (_keeps, "grow"),
        (_spins, "processor time"),
    ],
)
def test_a_breach_is_seen(run: object, message: str) -> None:
    with pytest.raises(law.Broken, match=message):
        law.judge(_example(run), b"", seconds=1.0, megabytes=FEW_MEGABYTES)


def test_declared_errors_and_success_are_fine() -> None:
    def refuses(data: bytes) -> None:
        if data:
            raise ValueError("no")

    law.judge(_example(refuses), b"")
    law.judge(_example(refuses), b"x")


@given(st.binary(max_size=20), st.binary(max_size=20))
@settings(max_examples=30, derandomize=True, database=None)
def test_a_breach_is_made_small(before: bytes, after: bytes) -> None:
    def run(data: bytes) -> None:
        if b"bad" in data:
            raise KeyError(0)

    assert minimise.smallest(_example(run), before + b"bad" + after) == b"bad"
