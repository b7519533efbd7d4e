"""Time the audit of large prediction tables beside the bare query, pandas and scikit-learn, and measure peak memory.

The bare query (``duckdb``) is a full outer join of both files that counts decisions by label and slice: it reads every
row and joins every id as the audit does, and checks nothing. The ratio to it says what the audit adds.

Each contender runs in a process of its own, so that its peak memory is its own; libraries are imported before the clock
starts. With ``--rounds`` all of them run in turn several times, and other work meets all of them. The
least seconds of each are shown, and the median over the rounds of the ratios within a round. ``--memory`` caps what
DuckDB may take; ``--cap`` kills a process whose resident memory goes beyond so many GiB, as a small machine would.

    python benchmarks/audit.py --rows 10000000 --rounds 5
    python benchmarks/audit.py --rows 10000000 --rounds 5 --probabilities --contenders duckdb lowchurn
    python benchmarks/audit.py --rows 100000000 --contenders duckdb lowchurn --memory 2500MB --cap 4
    python benchmarks/audit.py --rows 100000000 --contenders duckdb lowchurn spark
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SLICES = 20
THREADS = 2


def make_tables(folder, rows, probabilities=False):
    """Two Parquet files with the same ids in different orders; about 3 % of the decisions differ."""
    import duckdb

    con = duckdb.connect(config={"memory_limit": "2GB", "threads": THREADS, "preserve_insertion_order": False})
    # Multiplying by a number without a common factor permutes the ids, so that no side is sorted like the other.
    step = next(p for p in (2654435761, 2654435769, 40503, 65537) if rows % p)
    base = (
        "SELECT i AS id, (hash(i, 1) % 2)::TINYINT AS y, 'country ' || (hash(i, 2) % {s}) AS country, "
        "CASE WHEN hash(i, 3) % 100 < 90 THEN hash(i, 1) % 2 ELSE 1 - hash(i, 1) % 2 END::TINYINT AS before, "
        "CASE WHEN hash(i, 4) % 100 < 2 + hash(i, 2) % {s} // 7 THEN 1 - before ELSE before END::TINYINT AS after "
        "FROM (SELECT (k::HUGEINT * {p} % {n})::BIGINT AS i FROM range({n}) AS t(k))"
    )
    paths = []
    for name, decision, more, seed, p in (("old", "before", "y, country, ", 9, 1), ("new", "after", "", 10, step)):
        columns = f"id, {more}{decision} AS prediction"
        if probabilities:  # of the second class, on the side of the decision
            proba = (
                f"(0.5 * {decision} + (0.9 * (hash(id, 9) % 1000003) + 0.1 * (hash(id, {seed}) % 1000003)) / 2000006)"
            )
            columns += f", 1 - {proba}::DOUBLE AS proba_0, {proba}::DOUBLE AS proba_1"
        query = base.format(s=SLICES, n=rows, p=p)
        paths.append(os.path.join(folder, f"{name}.parquet"))
        con.execute(f"COPY (SELECT {columns} FROM ({query})) TO '{paths[-1]}' (FORMAT parquet)")
    return paths


def with_duckdb(old, new, memory, folder):
    """The bare query: the same counts, without a check, an interval or an example."""
    import duckdb

    yield
    limit = {"memory_limit": memory} if memory else {}
    spill = {"temp_directory": os.path.join(folder, "bare")}
    con = duckdb.connect(config={"threads": THREADS, "preserve_insertion_order": False} | limit | spill)
    cells = con.execute(
        "SELECT o.prediction, n.prediction, y, country, count(*) "
        f"FROM '{old}' AS o FULL OUTER JOIN '{new}' AS n ON o.id = n.id GROUP BY ALL"
    ).fetchall()
    rows = sum(n for *_, n in cells)

    def share(kind):
        return sum(cell[-1] for cell in cells if kind(*cell[:3])) / rows

    slices = {}
    for before, after, _, country, n in cells:
        there = slices.setdefault(country, [0, 0])
        there[0] += n * (before != after)
        there[1] += n
    figures = [
        share(lambda before, after, y: before != after),
        share(lambda before, after, y: before == y != after),
        share(lambda before, after, y: before == y),
        share(lambda before, after, y: after == y),
    ]
    yield figures, {country: changed / n for country, (changed, n) in slices.items()}


def with_lowchurn(old, new, memory, folder):
    import lowchurn.audit

    yield
    audit = lowchurn.audit.audit(
        old, new, label="y", by="country", memory_limit=memory, threads=THREADS, temp_directory=folder
    )
    slices = {s.value: s.churn.value for s in audit.slices}
    figures = (audit.churn, audit.broken, audit.accuracy_old, audit.accuracy_new)
    yield [e.value for e in figures], slices


def with_spark(old, new, memory, folder):
    """The same audit on a local Spark, which is started before the clock; ``--memory`` is that of its Java process."""
    import lowchurn.audit
    from lowchurn.audit._connections import connect
    from lowchurn.audit._settings import Settings

    conf = ["spark.ui.enabled=false", "spark.ui.showConsoleProgress=false", f"spark.local.dir={folder}"]
    conf.append(f"spark.driver.memory={memory or '8g'}")
    where = {"engine": "spark", "spark_master": f"local[{THREADS}]", "spark_conf": conf}
    connect("spark", Settings(**where))
    yield
    audit = lowchurn.audit.audit(old, new, label="y", by="country", **where)
    figures = (audit.churn, audit.broken, audit.accuracy_old, audit.accuracy_new)
    yield [e.value for e in figures], {s.value: s.churn.value for s in audit.slices}


def with_pandas(old, new, memory, folder):
    """The same figures as point estimates: no check of ids but that of the merge, no intervals, no tests."""
    import pandas as pd
    from sklearn.metrics import accuracy_score

    yield
    both = pd.read_parquet(old).merge(pd.read_parquet(new), on="id", suffixes=("_old", "_new"), validate="one_to_one")
    changed = both.prediction_old != both.prediction_new
    broken = changed & (both.prediction_old == both.y)
    slices = changed.groupby(both.country).mean()
    figures = [
        float(changed.mean()),
        float(broken.mean()),
        accuracy_score(both.y, both.prediction_old),
        accuracy_score(both.y, both.prediction_new),
    ]
    yield figures, {k: float(v) for k, v in slices.items()}


CONTENDERS = {"duckdb": with_duckdb, "lowchurn": with_lowchurn, "pandas": with_pandas, "spark": with_spark}


def other_processes():
    """CPU seconds and peak GiB of the processes that this one started, such as the Java of Spark."""
    mine, cpu, peak = {os.getpid()}, 0.0, 0.0
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/status") as status:
                fields = stat.read().rpartition(")")[2].split()
                high = [line.split()[1] for line in status if line.startswith("VmHWM")]
        except FileNotFoundError:
            continue
        found[int(pid)] = int(fields[1]), int(fields[11]) + int(fields[12]), int(high[0]) if high else 0
    while more := {pid for pid, (parent, *_) in found.items() if parent in mine and pid not in mine}:
        mine |= more
        cpu += sum(found[pid][1] for pid in more) / os.sysconf("SC_CLK_TCK")
        peak += sum(found[pid][2] for pid in more) / 2**20
    return cpu, peak


def resident(pid):
    """GiB that a process holds in memory now."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**30
    except (FileNotFoundError, IndexError):
        return 0.0


def run_capped(command, cap):
    """Like subprocess.run, with an eye on the memory."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        running = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        while running.poll() is None:
            if cap and resident(running.pid) > cap:
                running.kill()
                running.wait()
                return 1, "", f"killed: more than {cap:g} GiB"
            time.sleep(0.05)
        out.seek(0)
        err.seek(0)
        return running.returncode, out.read(), err.read()


def child(name, old, new, memory, folder):
    steps = CONTENDERS[name](old, new, memory or None, folder)
    next(steps)  # imports
    began, cpu = time.perf_counter(), time.process_time() + other_processes()[0]
    figures, slices = next(steps)
    others, peak = other_processes()
    seconds, cpu = time.perf_counter() - began, time.process_time() + others - cpu
    peak += resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_gib": peak, "figures": figures, "slices": slices}))


def largest_difference(first, second):
    """Between the figures of two contenders."""
    gaps = [abs(a - b) for a, b in zip(first["figures"], second["figures"], strict=True)]
    return max(gaps + [abs(first["slices"][k] - second["slices"][k]) for k in second["slices"]])


def show(rows, found):
    """A table of all contenders, with ratios to the bare query where it ran."""
    print("| contender | seconds | times the bare query | CPU seconds | times | rows a second | peak memory, GiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, runs in found.items():
        seconds, cpu = (min(run[key] for run in runs) for key in ("seconds", "cpu"))
        bare = found.get("duckdb", [{"seconds": math.nan, "cpu": math.nan}] * len(runs))
        wall_ratio, cpu_ratio = (
            statistics.median(run[key] / other[key] for run, other in zip(runs, bare, strict=True))
            for key in ("seconds", "cpu")
        )
        peak = max(run["peak_gib"] for run in runs)
        print(
            f"| {name} | {seconds:.2f} | {wall_ratio:.2f} | {cpu:.2f} | {cpu_ratio:.2f} | {rows / seconds:,.0f} | "
            f"{peak:.2f} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--probabilities", action="store_true", help="two columns of probabilities on both sides")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS)[:3], choices=list(CONTENDERS))
    parser.add_argument("--memory", default="", help="DuckDB's memory_limit")
    parser.add_argument("--cap", type=float, default=0, help="GiB of memory that a process may hold")
    parser.add_argument("--folder", default=None, help="where tables and spilled data go")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, old, new = arguments.child
        child(name, old, new, arguments.memory, arguments.folder)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        began = time.perf_counter()
        old, new = make_tables(folder, arguments.rows, arguments.probabilities)
        size = sum(os.path.getsize(p) for p in (old, new)) / 2**30
        print(f"{arguments.rows:,} rows a side, {size:.2f} GiB of Parquet, made in {time.perf_counter() - began:.0f} s")
        found = {name: [] for name in arguments.contenders}
        failed = {}
        for _ in range(arguments.rounds):
            for name in [name for name in found if name not in failed]:
                command = [sys.executable, __file__, "--child", name, old, new, "--folder", folder]
                command += ["--memory", arguments.memory]
                code, out, err = run_capped(command, arguments.cap)
                if code:
                    failed[name] = err.strip().splitlines()[-1]
                else:
                    found[name].append(json.loads(out))
        found = {name: runs for name, runs in found.items() if name not in failed}
        show(arguments.rows, found)
        for name, reason in failed.items():
            print(f"{name} failed: {reason}")
        first, *others = [runs[-1] for runs in found.values()] or [None]
        if others:
            gap = max(largest_difference(first, other) for other in others)
            print(f"largest difference between their figures: {gap:.1e}")
            assert gap < 1e-9
        if failed:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
