"""The plans of `lowchurn bench run` where there is numpy, scikit-learn, torch, triton, array_api_compat and no more.

    lowchurn bench prepare inputs.npz mnist kmnist --data DIR             # where pyarrow is
    python benchmarks/gpu_tables.py table2 --inputs inputs.npz --out OUT  # where the GPU is
    lowchurn bench import OUT/table2.tar --store STORE                    # where pyarrow is

Plans and their parts are in `lowchurn.bench._plans`. Rows that OUT/PLAN.tar contains already are not made again (to
read them takes msgspec; ``keep_rows.py --pack`` writes it from rows that are kept). Kernels are compiled beforehand by
several processes at once (``--warm-up``) and kept on disk; the timings leave that out and say so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn._files import write_file
from lowchurn.bench._plans import PLANS, Part, choose_parts, works
from lowchurn.bench._run import code_version, run
from lowchurn.bench._store import Store, copy_rows, opened_store, pack_store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=sorted(PLANS))
    parser.add_argument("--inputs", required=True, help="file made by `lowchurn bench prepare`, or a folder of data")
    parser.add_argument("--out", required=True, type=Path, help="folder for PLAN.tar and PLAN.timings.json")
    parser.add_argument("--trials", type=int, default=None, help="instead of the plan's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--block", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=None, help="fewer, for a quick look")
    parser.add_argument("--patience", type=int, default=None, help="epochs without improvement, instead of the plan's")
    parser.add_argument("--one-order", action="store_true", help="rows in the same order in every epoch")
    parser.add_argument("--start", default=None, help="warm, cold or both, instead of the plan's")
    parser.add_argument("--strategies", nargs="*", default=[], help="instead of the plan's")
    parser.add_argument("--datasets", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=[], help="some parts of the plan, such as convnet-4-1000")
    parser.add_argument("--retry-failed", action="store_true", help="train models again that failed")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N", help="compile kernels with N processes first")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    parts = choose_parts(
        chosen.plan,
        parts=chosen.parts,
        datasets=chosen.datasets,
        trials=chosen.trials,
        strategies=chosen.strategies,
        start=chosen.start,
        epochs=chosen.epochs,
        patience=chosen.patience,
        one_order=chosen.one_order,
    )
    took: dict[str, float] = {}
    if chosen.warm_up:
        began = time.perf_counter()
        warm_up(chosen, parts)
        took["warm-up"] = time.perf_counter() - began
        print(f"warm-up: {took['warm-up']:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store, earlier = Store(folder), chosen.out / f"{chosen.plan}.tar"
        if earlier.exists():
            with opened_store(earlier) as other:
                print(f"{earlier}: {copy_rows(other, store)} rows", flush=True)
        run_parts(store, parts, chosen, took)


def run_parts(store: Store, parts: list[Part], chosen: argparse.Namespace, took: dict[str, float]) -> None:
    counts: dict[str, dict[str, int]] = {}

    def tell(line: str) -> None:
        print(line, flush=True)
        save(store, chosen, took, counts)  # block by block: the machine's time may end at any moment

    options = {"device": chosen.device, "jobs": chosen.jobs, "block": chosen.block, "retry_failed": chosen.retry_failed}
    try:
        for part, protocol, datasets in works(parts, chosen.inputs, tell):
            began = time.perf_counter()
            found = run(store, datasets, [protocol], part.settings, part.trials, tell=tell, **options)
            known = counts.setdefault(part.name, dict.fromkeys(found, 0))
            counts[part.name] = {name: known[name] + found[name] for name in found}
            took[part.name] = took.get(part.name, 0.0) + time.perf_counter() - began
            tell(f"{chosen.plan}, {part.name}: {took[part.name]:.1f} s {counts[part.name]}")
    finally:
        save(store, chosen, took, counts)  # what was finished, whatever happened


def save(store: Store, chosen: argparse.Namespace, took: dict, counts: dict) -> None:
    if not any(store.segments.glob("[0-9]*")):
        return
    pack_store(store, chosen.out / f"{chosen.plan}.tar")
    facts = {"plan": chosen.plan, "trials": chosen.trials, "seconds": took, "rows": counts, "version": code_version()}
    write_file(chosen.out / f"{chosen.plan}.timings.json", json.dumps(facts, indent=2) + "\n")


def warm_up(chosen: argparse.Namespace, parts: list[Part]) -> None:
    """One trial and one epoch of each data set, in processes of their own: each compiles what its shapes need."""
    names = sorted({name for part in parts for name in part.datasets})
    running: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            while sum(p.poll() is None for p in running) >= chosen.warm_up:
                time.sleep(0.1)
            command = [sys.executable, __file__, chosen.plan, "--inputs", chosen.inputs, "--out", f"{folder}/{name}"]
            command += ["--trials", "1", "--epochs", "1", "--jobs", "1", "--block", "1"]
            command += ["--device", chosen.device, "--datasets", name]
            command += ["--parts", *chosen.parts] if chosen.parts else []
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for process in running:
            if process.wait():
                print(f"warm-up: a process ended with {process.returncode}", flush=True)


if __name__ == "__main__":
    main()
