"""A bench that is killed at any moment loses no row and doubles none; the same seed gives the same bits everywhere."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.bench._run import run
from lowchurn.bench._segments import COLUMNS
from lowchurn.bench._store import Store

KILLS = 100
TRIALS = 12
SMALL = Protocol(network="fcn-4", initial=40, validation=20, batch=30, epochs=3)
SETTINGS = ["cold", "warm", "mixup", "co-dist", "distill", "soup"]
TIMES = ("seconds", "block_seconds", "block_models", "created", "version")

pytestmark = pytest.mark.stress


def bits(store):
    """All rows with everything but times, floats to the last bit; no key twice."""
    rows = Store(store).rows()
    shown = [
        tuple(
            value.hex() if isinstance(value, float) else str(value) if name == "parameters" else value
            for name, value in ((name, row[name]) for name in COLUMNS if name not in TIMES)
        )
        for row in rows
    ]
    assert len(shown) == len(set(shown))
    return sorted(shown, key=str)


def raw_rows(store):
    """Rows as they lie in the segments, with those that a reader would pass over."""
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(path).metadata.num_rows for path in (store / "segments").glob("*.parquet"))


def leftovers(store):
    """What a store must not contain when nobody writes."""
    names = {p.name for p in store.iterdir()} - {"lock", "segments"}
    return names | {p.name for p in (store / "segments").iterdir() if not p.name[0].isdigit()}


def work(store, **options):
    """One run in a process of its own; 2 where another process is writing."""
    try:
        run(
            Store(store),
            ["wine"],
            [SMALL],
            settings_of(SETTINGS),
            TRIALS,
            **{"device": "cpu", "block": 1, "threads": 1, "tell": lambda line: None} | options,
        )
    except ValueError as error:
        sys.exit(2 if "another process is writing" in str(error) else f"unexpected: {error}")


@pytest.fixture(scope="module")
def fresh():
    """Processes that have everything imported, so that kills fall into the work and not into imports."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lowchurn.bench._run", "lowchurn.nets", "sklearn.datasets", "pyarrow.parquet"])

    def start(store, **options):
        process = context.Process(target=work, args=(store,), kwargs=options)
        process.start()
        return process

    return start


@pytest.fixture(scope="module")
def whole(fresh, tmp_path_factory):
    """A store that nobody killed, and how long it took when everything was warm."""
    store = tmp_path_factory.mktemp("whole") / "store"
    fresh(store.with_name("first")).join()
    began = time.monotonic()
    process = fresh(store)
    process.join()
    assert process.exitcode == 0
    assert leftovers(store) == set()
    return bits(store), time.monotonic() - began


def wait_for_draft(store, seconds):
    """Until a segment is being written, which is the moment when most can go wrong."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if any(name.startswith(".") for name in os.listdir(store / "segments")):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.0002)


def test_random_kills_lose_nothing_and_double_nothing(fresh, whole, tmp_path):
    expected, length = whole
    chance = random.Random(20)
    caught = 0
    store = tmp_path / "0"
    before = set()
    for kill in range(KILLS):
        process = fresh(store)
        if kill % 2:
            time.sleep(chance.uniform(0, 0.5) * length)
            wait_for_draft(store, length)
        else:
            time.sleep(chance.uniform(0, 1) * length)
        process.kill()
        process.join()
        if (store / "segments").exists():
            caught += bool(leftovers(store))
            now = set(bits(store))  # readable, whatever happened
            assert before <= now <= set(expected)
            before = now
            assert raw_rows(store) == len(now)  # no row was written twice
        if len(before) == len(expected):
            final = fresh(store)
            final.join()
            assert (final.exitcode, leftovers(store), bits(store)) == (0, set(), expected)
            store, before = tmp_path / str(kill + 1), set()
    final = fresh(store)
    final.join()
    assert (final.exitcode, leftovers(store)) == (0, set())
    assert bits(store) == expected
    assert raw_rows(store) == len(expected)
    assert caught > 0, "no kill left a draft behind: the test does not test that"


def test_kills_of_the_command_itself(whole, tmp_path):
    """The real command, with its imports, its signals and its output."""
    expected, _ = whole
    command = [sys.executable, "-m", "lowchurn", "bench", "run", "wine", "--store", str(tmp_path / "store")]
    command += ["--network", "fcn-4", "--initial", "40", "--validation", "20", "--batch", "30", "--epochs", "3"]
    command += [part for name in SETTINGS for part in ("--strategy", name)]
    command += ["--trials", str(TRIALS), "--block", "1", "--device", "cpu"]
    chance = random.Random(21)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGKILL):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            for _ in range(chance.randrange(1, 4)):
                process.stdout.readline()  # a block is finished
            time.sleep(chance.uniform(0, 0.2))
            process.send_signal(number)
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert bits(tmp_path / "store") == expected
    assert leftovers(tmp_path / "store") == set()


def test_several_benches_on_one_store(fresh, whole, tmp_path):
    expected, length = whole
    chance = random.Random(22)
    for attempt in range(10):
        store = tmp_path / str(attempt)
        together = [fresh(store) for _ in range(3)]
        if attempt % 2:
            time.sleep(chance.uniform(0, 1) * length)
            together[0].kill()
        for process in together:
            process.join()
        codes = [process.exitcode for process in together]
        assert set(codes) <= {0, 2, -signal.SIGKILL}, codes
        if attempt % 2 == 0:
            assert 0 in codes
        final = fresh(store)
        final.join()
        assert final.exitcode == 0
        assert bits(store) == expected
        assert raw_rows(store) == len(expected)
        assert leftovers(store) == set()


ALONE = """
import sys
from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.bench._run import run
from lowchurn.bench._store import Store
store, dataset, network, names, options, data = eval(sys.argv[1])
protocol = Protocol(network=network, initial=60, validation=20, batch=40, epochs=2)
run(Store(store), [dataset], [protocol], settings_of(names), 4, device="cpu", data=data, **options)
"""


def texts(folder):
    """A small data set of words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance, words = random.Random(0), ["good", "bad", "film", "plot", "star", "dull", "fine"]
    rows = [" ".join(chance.choices(words, k=12)) for _ in range(200)]
    (folder / "text").mkdir()
    split = ["train"] * 150 + ["test"] * 50
    pq.write_table(
        pa.table({"text": rows, "label": [int("good" in row) for row in rows], "split": split}),
        folder / "text" / "words.parquet",
    )
    return str(folder)


CASES = {
    "fcn": ("digits", "fcn-16", ["cold", "warm", "mixup", "co-dist", "distill", "soup", "constrained"]),
    "convnet": ("digit_images", "convnet-1", ["cold", "mixup"]),
    "transformer": ("words", "transformer-1", ["cold"]),
}
# OMP_NUM_THREADS, and what `run` is given
WAYS = [
    ("1", {"block": 4, "threads": 1}),
    ("1", {"block": 4, "threads": 1}),  # another process
    ("1", {"block": 1, "threads": 1}),
    ("1", {"block": 3, "threads": 3}),
    ("2", {"block": 4, "threads": 2}),
    ("4", {"block": 2}),
    ("1", {"block": 1, "jobs": 3}),
]


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_bits(case, tmp_path):
    """Over processes, threads, blocks and jobs."""
    dataset, network, names = CASES[case]
    data = texts(tmp_path) if case == "transformer" else None
    found = []
    for number, (threads, options) in enumerate(WAYS):
        what = (str(tmp_path / str(number)), dataset, network, names, options, data)
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        subprocess.run(
            [sys.executable, "-c", ALONE, repr(what)], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        found.append(bits(tmp_path / str(number)))
    different = [WAYS[j] for i, j in itertools.combinations(range(len(WAYS)), 2) if i == 0 and found[i] != found[j]]
    assert not different
