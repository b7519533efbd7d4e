"""Time the audit of large prediction tables, beside pandas and scikit-learn, and measure peak memory.

Each contender runs in a process of its own, so that its peak memory is its own. ``--memory`` caps what DuckDB may
take; ``--cap`` kills a process whose resident memory goes beyond so many GiB, as a small machine would.

    python benchmarks/audit.py --rows 10000000
    python benchmarks/audit.py --rows 100000000 --contenders lowchurn --memory 2500MB --cap 4
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

SLICES = 20


def make_tables(folder, rows, seed=1):
    """Two Parquet files with the same ids in different orders; about 3 % of the decisions differ."""
    import duckdb

    con = duckdb.connect(config={"memory_limit": "2GB", "threads": 2, "preserve_insertion_order": False})
    # Multiplying by a number without a common factor permutes the ids, so that no side is sorted like the other.
    step = next(p for p in (2654435761, 2654435769, 40503, 65537) if rows % p)
    base = (
        "SELECT i AS id, (hash(i, 1) % 2)::TINYINT AS y, 'country ' || (hash(i, 2) % {s}) AS country, "
        "CASE WHEN hash(i, 3) % 100 < 90 THEN hash(i, 1) % 2 ELSE 1 - hash(i, 1) % 2 END::TINYINT AS prediction, "
        "hash(i, 4) % 100 < 2 + hash(i, 2) % {s} // 7 AS flip "
        "FROM (SELECT (k::HUGEINT * {p} % {n})::BIGINT AS i FROM range({n}) AS t(k))"
    )
    paths = [os.path.join(folder, name) for name in ("old.parquet", "new.parquet")]
    query = base.format(s=SLICES, n=rows, p=1)
    con.execute(f"COPY (SELECT id, y, country, prediction FROM ({query})) TO '{paths[0]}' (FORMAT parquet)")
    query = base.format(s=SLICES, n=rows, p=step)
    con.execute(
        "COPY (SELECT id, CASE WHEN flip THEN 1 - prediction ELSE prediction END::TINYINT AS prediction "
        f"FROM ({query})) TO '{paths[1]}' (FORMAT parquet)"
    )
    return paths


def with_lowchurn(old, new, memory, folder):
    import lowchurn

    audit = lowchurn.audit.audit(
        old, new, label="y", by="country", memory_limit=memory, threads=2, temp_directory=folder
    )
    slices = {s.value: s.churn.value for s in audit.slices}
    figures = (audit.churn, audit.broken, audit.accuracy_old, audit.accuracy_new)
    return [e.value for e in figures], slices


def with_pandas(old, new, memory, folder):
    """The same figures as point estimates: no check of ids but that of the merge, no intervals, no tests."""
    import pandas as pd
    from sklearn.metrics import accuracy_score

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
    return figures, {k: float(v) for k, v in slices.items()}


CONTENDERS = {"lowchurn": with_lowchurn, "pandas": with_pandas}


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
    began = time.perf_counter()
    figures, slices = CONTENDERS[name](old, new, memory or None, folder)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "peak_gib": peak, "figures": figures, "slices": slices}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
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
        old, new = make_tables(folder, arguments.rows)
        size = sum(os.path.getsize(p) for p in (old, new)) / 2**30
        print(f"{arguments.rows:,} rows a side, {size:.2f} GiB of Parquet, made in {time.perf_counter() - began:.0f} s")
        print("| contender | seconds | rows a second | peak memory, GiB |\n| --- | --- | --- | --- |")
        results = {}
        for name in arguments.contenders:
            command = [sys.executable, __file__, "--child", name, old, new, "--folder", folder]
            command += ["--memory", arguments.memory]
            code, out, err = run_capped(command, arguments.cap)
            if code:
                print(f"| {name} | failed: {err.strip().splitlines()[-1]} | | |", flush=True)
                continue
            results[name] = found = json.loads(out)
            speed = arguments.rows / found["seconds"]
            print(f"| {name} | {found['seconds']:.1f} | {speed:,.0f} | {found['peak_gib']:.2f} |", flush=True)
        if len(results) > 1:
            first, second = results.values()
            gaps = [abs(a - b) for a, b in zip(first["figures"], second["figures"], strict=True)]
            gaps += [abs(first["slices"][k] - second["slices"][k]) for k in second["slices"]]
            print(f"largest difference between their figures: {max(gaps):.1e}")
            assert max(gaps) < 1e-9
        if set(results) != set(arguments.contenders):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
