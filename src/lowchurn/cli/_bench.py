"""``lowchurn bench`` and ``lowchurn data``: parse and call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from lowchurn._exits import tell
from lowchurn._ray import connected
from lowchurn._terminal import printable
from lowchurn.cli._cluster_options import AddressOption, ClusterOption, on_cluster
from lowchurn.cli._help import BENCH, DONE, add_command
from lowchurn.cli._printing import blocks_bar, print_line

if TYPE_CHECKING:
    from lowchurn.bench._plans import Part
    from lowchurn.bench._run import Asked

bench_app = typer.Typer(
    help="Run the paper's experiments; make their tables and figures.",
    no_args_is_help=True,
    epilog="Example: lowchurn bench run wine --network fcn-100 --initial 40 --validation 20 --batch 40 --trials 5",
)
data_app = typer.Typer(
    help="List the data sets of the experiments, and get them.",
    no_args_is_help=True,
    epilog="Example: lowchurn data list",
)

StoreOption = Annotated[Path, Option("--store", help="Folder of results.")]
DataOption = Annotated[
    Path | None, Option("--data", envvar="LOWCHURN_DATA", help="Folder of data sets, or a prepared file.")
]
OutOption = Annotated[Path, Option("--out", help="Folder to write to.")]
STORE = Path("bench-store")


def run_command(
    names: Annotated[
        list[str],
        Argument(
            metavar="PLAN_OR_DATA",
            help="A plan, such as table2, celeba, resnet, imdb or squared, and perhaps data sets of it; or data sets "
            "or groups, such as openml, mnist-variants or built-in. With --network, celeba and imdb are data sets.",
        ),
    ],
    store: StoreOption = STORE,
    data: DataOption = None,
    part: Annotated[
        list[str] | None, Option(help="Part of the plan, such as convnet-4-1000. May be repeated. Default: all.")
    ] = None,
    network: Annotated[list[str] | None, Option(help="Network to train, such as fcn-1000. May be repeated.")] = None,
    strategy: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            "--strategies",
            help="Name of a strategy, or paper (default), coarse, dial, sticky, all or budget. May be repeated.",
        ),
    ] = None,
    start: Annotated[
        str | None, Option(help="Where strategies start: warm, cold, both or default. Default: warm, or the plan's.")
    ] = None,
    ablation: Annotated[bool, Option("--ablation", help="Run the steps from distillation to anchor.")] = False,
    trials: Annotated[int | None, Option(help="Trials of each setting. Default: 100, or the plan's.")] = None,
    initial: Annotated[
        list[int] | None, Option(help="Rows that the base is trained on. May be repeated. Default: 1000.")
    ] = None,
    validation: Annotated[
        int | None,
        Option(help="Rows on which training is stopped. Default: 100, or 1000 where --initial is at least 10000."),
    ] = None,
    batch: Annotated[int | None, Option(help="Rows that are new in the retrain. Default: 1000.")] = None,
    scale: Annotated[bool, Option("--scale", help="Standardise the features.")] = False,
    patience: Annotated[int | None, Option(help="Epochs without improvement before a model stops. Default: 5.")] = None,
    loss: Annotated[str | None, Option(help="Loss to train with: log (default) or squared.")] = None,
    epochs: Annotated[int | None, Option(help="Largest number of epochs. Default: 300.")] = None,
    seed: Annotated[int | None, Option(help="Seed of all draws. Default: 0.")] = None,
    one_order: Annotated[bool, Option("--one-order", help="Rows in the same order in every epoch.")] = False,
    device: Annotated[str, Option(help="Device to train on: auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, Option(help="Precision of the training: float32 or float64.")] = "float32",
    jobs: Annotated[int | None, Option(help="Blocks that are trained at a time.")] = None,
    block: Annotated[int | None, Option(help="Trials that are trained together; a kill loses at most these.")] = None,
    retry_failed: Annotated[bool, Option("--retry-failed", help="Train models again that failed.")] = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
    gpus_per_block: Annotated[
        float | None, Option(help="GPUs of a block on the cluster, such as 1 or 0.125. Default: 1 if there are any.")
    ] = None,
    cpus_per_block: Annotated[float | None, Option(help="CPUs of a block on the cluster. Default: 1.")] = None,
) -> None:
    """Train and measure what the store does not contain yet; the same command goes on where it was stopped."""
    from lowchurn._checks import unknown_name
    from lowchurn.bench._ablation import ablation_settings
    from lowchurn.bench._blocks import How
    from lowchurn.bench._datasets import DATASETS
    from lowchurn.bench._loading import available, expand
    from lowchurn.bench._plans import PLANS, choose_parts
    from lowchurn.bench._protocol import Protocol, check_counts, settings_of

    changes: dict[str, Any] = {"patience": patience, "epochs": epochs, "seed": seed}
    counted = {"trials": trials, "validation": validation, "batch": batch, "jobs": jobs, "block": block}
    check_counts("bench run", counted | changes, prefix="--")
    for size in initial or []:
        check_counts("bench run", {"initial": size}, prefix="--")
    options = {"data": data, "how": How(device, dtype), "jobs": jobs, "block": block, "retry_failed": retry_failed}
    placed = _cluster_options(cluster, address, gpus_per_block, cpus_per_block)
    if names[0] in PLANS and not network and not ablation:
        own = {"initial": initial, "validation": validation, "batch": batch, "scale": scale, "loss": loss}
        if wrong := [name for name, value in own.items() if value]:
            raise ValueError(f"bench run: --{wrong[0]} is part of a plan, such as {names[0]}. Leave it out.")
        chosen: dict[str, Any] = {"parts": part or [], "datasets": names[1:], "strategies": strategy or []}
        parts = choose_parts(names[0], trials=trials, start=start, **chosen, **changes, one_order=one_order)
        _run_all(store, partial(_planned, names[0], parts, data), options, placed)
        return
    if part:
        raise ValueError("bench run: --part is for plans, such as table2. Leave it out.")
    known = {*available(data), *(name for spec in DATASETS for name in (spec.name, spec.group))}
    for name in names:
        if name not in known:
            raise unknown_name("bench run", "plan or data set", name, {*PLANS, *known})
    changes |= {"batch": batch, "scale": scale, "loss": loss, "one_order": one_order}
    given = {name: value for name, value in changes.items() if value is not None}

    def protocol(name: str, size: int) -> Protocol:
        stopped_on = (1000 if size >= 10000 else 100) if validation is None else validation
        return Protocol(name, size, stopped_on, **given)

    protocols = [protocol(name, size) for name in network or ["fcn-1000"] for size in initial or [1000]]
    start = start or "warm"
    settings = ablation_settings(start) if ablation else settings_of(strategy or ["paper"], start)
    _run_all(store, lambda tell: [(expand(names), protocols, settings, trials or 100)], options, placed)


def _cluster_options(
    cluster: str | None, address: str | None, gpus: float | None, cpus: float | None
) -> dict[str, Any] | None:
    """Where blocks are run and what each of them takes; None for this machine."""
    if not on_cluster("bench run", cluster, address=address, gpus_per_block=gpus, cpus_per_block=cpus):
        return None
    from lowchurn.bench._cluster import check_resources

    cpus = 1.0 if cpus is None else cpus
    check_resources(gpus, cpus)
    return {"address": address, "gpus": gpus, "cpus": cpus}


def _planned(plan: str, parts: list[Part], data: Path | None, tell: Callable[[object], None]) -> Iterator[Asked]:
    """What a plan asks for, part by part; data sets are read once."""
    from lowchurn.bench._plans import works

    ran = False
    for part, protocol, datasets in works(parts, data, tell):
        tell(f"{plan}, {part.name}: {', '.join(one.name for one in datasets)}; {part.trials} trials")
        yield datasets, [protocol], part.settings, part.trials
        ran = True
    if not ran:
        raise ValueError(
            f"bench run: no data set of {plan} is here, or none has enough rows. Get them with `lowchurn data fetch` "
            "on a machine with internet, then give --data DIR or set LOWCHURN_DATA."
        )


def _run_all(
    store: Path,
    asked: Callable[[Callable[[object], None]], Iterable[Asked]],
    options: dict[str, Any],
    cluster: dict[str, Any] | None,
) -> None:
    """Run everything that is asked for, here or on a cluster, and tell how it went."""
    from lowchurn.bench._cluster import OnRay
    from lowchurn.bench._local import Local
    from lowchurn.bench._run import Run, outcome
    from lowchurn.bench._store import Store

    done: list[Asked] = []

    def remembered(line: Callable[[object], None]) -> Iterator[Asked]:
        for each in asked(line):
            done.append(each)
            yield each

    place = Store(store)
    with ExitStack() as opened:
        executor: Local | OnRay = Local()
        if cluster is not None:
            ray = opened.enter_context(connected("bench", cluster.pop("address")))
            executor = OnRay(ray, jobs=options["jobs"], **cluster)
        line, show = opened.enter_context(blocks_bar())
        counts = Run(place, executor, **options).do(remembered(line), line, show)
    print_line(f"{counts['new']} new rows, {counts['failed']} failed, {counts['there']} were there.")
    found = outcome(place, done)
    if found.failed and not found.finished:
        tell("error", f"bench run: none of {found.failed} rows is finished; the first {found.reason}", "bold red")
        raise typer.Exit(1)
    if found.failed:
        of_all = f"{found.failed} of {found.failed + found.finished} rows failed"
        tell("warning", f"bench run: {of_all}; the first {found.reason}", "yellow")


def status_command(store: StoreOption = STORE) -> None:
    """Show what the store contains."""
    from lowchurn.bench._run import summary
    from lowchurn.bench._store import Store

    if not store.exists():
        raise ValueError(f"bench status: there is no store {store}. Make one with `lowchurn bench run`.")
    lines = summary(Store(store))
    if not lines:
        print_line(f"{store} contains no rows.")
        return
    table = Table()
    for heading in lines[0]:
        table.add_column(heading)
    for line in lines:
        table.add_row(*(Text(printable(value)) for value in line.values()))
    Console(width=200, soft_wrap=True).print(table)


def tables_command(store: StoreOption = STORE, out: OutOption = Path("bench-tables")) -> None:
    """Write every table that the store fills, as Markdown, CSV and LaTeX."""
    from lowchurn.bench._report import write_tables
    from lowchurn.bench._store import Store

    for path in write_tables(Store(store), out):
        print_line(path)


def report_command(store: StoreOption = STORE, out: OutOption = Path("bench-report")) -> None:
    """Make one page of all tables and figures."""
    from lowchurn.bench._report import write_report
    from lowchurn.bench._store import Store

    print_line(write_report(Store(store), out))


def import_command(
    sources: Annotated[list[Path], Argument(help="Other stores: folders or tar files.")],
    store: StoreOption = STORE,
) -> None:
    """Add the rows of other stores, such as one from a GPU machine."""
    from lowchurn.bench._store import Store, copy_rows, opened_store

    with ExitStack() as opened:
        others = [opened.enter_context(opened_store(source)) for source in sources]
        for other in others:
            other.rows()  # one that cannot be read is refused before anything is written
        for source, other in zip(sources, others, strict=True):
            print_line(f"{source}: {copy_rows(other, Store(store))} new rows")


def prepare_command(
    path: Annotated[Path, Argument(help="File to write, which ends in .npz.")],
    datasets: Annotated[list[str] | None, Argument(help="Data sets or groups. Default: openml.")] = None,
    data: DataOption = None,
) -> None:
    """Pack data sets into one file that needs nothing but numpy to read."""
    from lowchurn.bench._loading import prepare

    print_line(f"{path}: {prepare(path, datasets or ['openml'], data) / 1e6:.1f} MB")


def list_command(data: DataOption = None) -> None:
    """List the data sets, and which of them are here."""
    from lowchurn.bench._datasets import DATASETS
    from lowchurn.bench._loading import available

    here = available(data)
    lines = [(spec.name, spec.group, spec.source, here.get(spec.name, "-")) for spec in DATASETS]
    lines += [(name, "own", "-", here[name]) for name in sorted(set(here) - {spec.name for spec in DATASETS})]
    lines = [("data set", "group", "source", "here"), *lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print_line("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def fetch_command(
    names: Annotated[list[str], Argument(help="Data sets or groups.")],
    data: Annotated[Path, Option("--data", envvar="LOWCHURN_DATA", help="Folder to put them into.")],
    again: Annotated[bool, Option("--again", help="Fetch data sets again that are there.")] = False,
) -> None:
    """Get data sets from the internet."""
    from lowchurn.bench._fetch import fetch
    from lowchurn.bench._loading import expand

    for name in expand(names):
        path = fetch(name, data, again=again)
        print_line(f"{name}: {path or 'comes with scikit-learn'}")


add_command(
    bench_app,
    run_command,
    BENCH,
    "lowchurn bench run wine --network fcn-100 --initial 40 --validation 20 --batch 40 --trials 5",
    "run",
    DONE.replace("0 done;", "0 done; 1 none of the models that were asked for is finished;"),
)
add_command(bench_app, status_command, BENCH, "lowchurn bench status --store bench-store", "status")
add_command(bench_app, tables_command, BENCH, "lowchurn bench tables --out tables", "tables")
add_command(bench_app, report_command, BENCH, "lowchurn bench report --out report", "report")
add_command(bench_app, import_command, BENCH, "lowchurn bench import other-store --store bench-store", "import")
add_command(
    bench_app, prepare_command, BENCH, "lowchurn bench prepare inputs.npz openml --data ~/lowchurn-data", "prepare"
)
add_command(data_app, list_command, BENCH, "lowchurn data list --data ~/lowchurn-data", "list")
add_command(data_app, fetch_command, BENCH, "lowchurn data fetch openml --data ~/lowchurn-data", "fetch")
