"""The paper's OpenML experiments on one GPU, with numpy, scikit-learn, torch, triton, array_api_compat and no more.

    lowchurn bench prepare inputs.npz --data DIR                        # where pyarrow is
    python benchmarks/gpu_tables.py raw --inputs inputs.npz --out OUT   # where the GPU is
    lowchurn bench import OUT/raw.tar --store STORE                     # where pyarrow is

Plans: raw, scaled (Table 1, target strategies started warm, then cold), small (fcn-10, -100), large (fcn-10000), huge
(fcn-100000), each for initial sizes 1000 and 100, ablation (phishing); dial (what is past the paper, raw and scaled),
small-scaled (the paper's strategies for fcn-100, where "small" leaves them out), digits (a convnet on scikit-learn's
digits, everything). Kernels are compiled beforehand by several
processes at once (``--warm-up``), which Triton keeps on disk; the timings leave that out and say so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn._files import write_file
from lowchurn.bench._ablation import ablation_settings
from lowchurn.bench._datasets import names_of
from lowchurn.bench._protocol import Protocol, dial_settings, paper_settings
from lowchurn.bench._run import code_version, run
from lowchurn.bench._store import Store

OPENML = names_of("openml")
SIZES = (1000, 100)
# A plan: its parts as (name, data sets, protocols, settings), in the order in which they run.
PLANS = {
    "raw": [(f"{s} start", OPENML, [Protocol()], paper_settings(s)) for s in ("warm", "cold")],
    "scaled": [(f"{s} start", OPENML, [Protocol(scale=True)], paper_settings(s)) for s in ("warm", "cold")],
    "small": [
        (f"fcn-{size}", OPENML, [Protocol(f"fcn-{size}", initial) for initial in SIZES], paper_settings("warm"))
        for size in (10, 100)
    ]
    + [("fcn-1000 from 100", OPENML, [Protocol("fcn-1000", 100)], paper_settings("warm"))],
    "large": [(f"from {n}", OPENML, [Protocol("fcn-10000", n)], paper_settings("warm")) for n in SIZES],
    "huge": [(f"from {n}", OPENML, [Protocol("fcn-100000", n)], paper_settings("warm")) for n in SIZES],
    "dial": [
        (f"{network} {'scaled' if scale else 'raw'}", OPENML, [Protocol(network, scale=scale)], dial_settings())
        for network in ("fcn-1000", "fcn-100")
        for scale in (False, True)
    ],
    "small-scaled": [
        ("scaled, warm start", OPENML, [Protocol("fcn-100", scale=True)], paper_settings("warm")),
        ("scaled, cold start", OPENML, [Protocol("fcn-100", scale=True)], paper_settings("cold")),
        ("raw, cold start", OPENML, [Protocol("fcn-100")], paper_settings("cold")),
    ],
    "digits": [
        (name, ("digit_images",), [Protocol("convnet-1", initial=400, batch=400)], settings)
        for name, settings in (("dial", dial_settings()), ("paper", paper_settings("both")))
    ],
    "ablation": [("phishing", ("phishing",), [Protocol()], ablation_settings("warm"))],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=sorted(PLANS))
    parser.add_argument("--inputs", required=True, help="file made by `lowchurn bench prepare`, or a folder of data")
    parser.add_argument("--out", required=True, type=Path, help="folder for PLAN.tar and PLAN.timings.json")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--block", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=None, help="fewer, for a quick look")
    parser.add_argument("--datasets", nargs="*", default=None)
    parser.add_argument("--parts", nargs="*", default=None, help="some parts of the plan, such as fcn-100")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N", help="compile kernels with N processes first")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    took = {}
    if chosen.warm_up:
        began = time.perf_counter()
        warm_up(chosen)
        took["warm-up"] = time.perf_counter() - began
        print(f"warm-up: {took['warm-up']:.1f} s", flush=True)
    counts = {}

    def tell(line: str) -> None:
        print(line, flush=True)
        save(store, chosen, took, counts)  # block by block: the machine's time may end at any moment

    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        try:
            for name, datasets, protocols, settings in PLANS[chosen.plan]:
                if chosen.parts and name not in chosen.parts:
                    continue
                began = time.perf_counter()
                if chosen.epochs:
                    protocols = [Protocol(**(vars(p) | {"epochs": chosen.epochs})) for p in protocols]
                counts[name] = run(
                    store,
                    [d for d in datasets if not chosen.datasets or d in chosen.datasets],
                    protocols,
                    settings,
                    chosen.trials,
                    data=chosen.inputs,
                    device=chosen.device,
                    jobs=chosen.jobs,
                    block=chosen.block,
                    tell=tell,
                )
                took[name] = time.perf_counter() - began
                print(f"{chosen.plan}, {name}: {took[name]:.1f} s {counts[name]}", flush=True)
                save(store, chosen, took, counts)
        finally:
            save(store, chosen, took, counts)  # what was finished, whatever happened


def save(store: Store, chosen: argparse.Namespace, took: dict, counts: dict) -> None:
    beside = chosen.out / f".{chosen.plan}-{threading.get_ident()}"
    with tarfile.open(beside, "w") as tar:
        for path in sorted(store.segments.glob("[0-9]*")):
            tar.add(path, f"segments/{path.name}")
    os.replace(beside, chosen.out / f"{chosen.plan}.tar")
    facts = {"plan": chosen.plan, "trials": chosen.trials, "seconds": took, "rows": counts, "version": code_version()}
    write_file(chosen.out / f"{chosen.plan}.timings.json", json.dumps(facts, indent=2) + "\n")


def warm_up(chosen: argparse.Namespace) -> None:
    """One trial and one epoch of each data set, in processes of their own: each compiles what its shapes need."""
    names = sorted({d for _, datasets, _, _ in PLANS[chosen.plan] for d in datasets})
    names = [d for d in names if not chosen.datasets or d in chosen.datasets]
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
