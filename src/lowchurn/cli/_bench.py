"""``lowchurn bench`` and ``lowchurn data``: parse and call."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from lowchurn._exits import tell
from lowchurn._terminal import printable
from lowchurn.cli._printing import print_line

bench_app = typer.Typer(help="Run the paper's experiments; make their tables and figures.", no_args_is_help=True)
data_app = typer.Typer(help="The data sets of the experiments.", no_args_is_help=True)

StoreOption = Annotated[Path, Option("--store", help="Folder of results.")]
DataOption = Annotated[
    Path | None, Option("--data", envvar="LOWCHURN_DATA", help="Folder of data sets, or a prepared file.")
]
OutOption = Annotated[Path, Option("--out", help="Folder to write to.")]
STORE = Path("bench-store")


@bench_app.command("run")
def run_command(
    datasets: Annotated[
        list[str], Argument(help="Data sets or groups, such as openml, mnist-variants, celeba or built-in.")
    ],
    store: StoreOption = STORE,
    data: DataOption = None,
    network: Annotated[list[str] | None, Option(help="Network to train, such as fcn-1000. May be repeated.")] = None,
    strategy: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            "--strategies",
            help="Name of a strategy, or paper (default), dial, sticky, all or budget. May be repeated.",
        ),
    ] = None,
    start: Annotated[str, Option(help="Where strategies start: warm, cold, both or default.")] = "warm",
    ablation: Annotated[bool, Option("--ablation", help="Run the steps from distillation to anchor.")] = False,
    trials: Annotated[int, Option(help="Trials of each setting.")] = 100,
    initial: Annotated[
        list[int] | None, Option(help="Rows that the base is trained on. May be repeated. Default: 1000.")
    ] = None,
    validation: Annotated[
        int | None,
        Option(help="Rows on which training is stopped. Default: 100, or 1000 where --initial is at least 10000."),
    ] = None,
    batch: Annotated[int, Option(help="Rows that are new in the retrain.")] = 1000,
    scale: Annotated[bool, Option("--scale", help="Standardise the features.")] = False,
    patience: Annotated[int, Option(help="Epochs without improvement before a model stops.")] = 5,
    loss: Annotated[str, Option(help="Loss to train with: log or squared.")] = "log",
    epochs: Annotated[int, Option(help="Largest number of epochs.")] = 300,
    seed: Annotated[int, Option(help="Seed of all draws.")] = 0,
    device: Annotated[str, Option(help="Device to train on: auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, Option(help="Precision of the training: float32 or float64.")] = "float32",
    jobs: Annotated[int | None, Option(help="Blocks that are trained at a time.")] = None,
    block: Annotated[int | None, Option(help="Trials that are trained together; a kill loses at most these.")] = None,
    retry_failed: Annotated[bool, Option("--retry-failed", help="Train models again that failed.")] = False,
) -> None:
    """Train and measure what the store does not contain yet; the same command goes on where it was stopped.

    Exit code 1: none of the models that were asked for is finished.
    """
    from lowchurn.bench._ablation import ablation_settings
    from lowchurn.bench._loading import expand
    from lowchurn.bench._protocol import Protocol, check_counts, settings_of
    from lowchurn.bench._run import outcome, run
    from lowchurn.bench._store import Store

    counted = {"trials": trials, "validation": validation, "batch": batch, "patience": patience, "epochs": epochs}
    check_counts("bench run", counted | {"seed": seed, "jobs": jobs, "block": block}, prefix="--")
    sizes = initial or [1000]
    for size in sizes:
        check_counts("bench run", {"initial": size}, prefix="--")

    def protocol(name: str, size: int) -> Protocol:
        stopped_on = (1000 if size >= 10000 else 100) if validation is None else validation
        return Protocol(name, size, stopped_on, batch, scale, patience, loss, epochs, seed)

    protocols = [protocol(name, size) for name in network or ["fcn-1000"] for size in sizes]
    settings = ablation_settings(start) if ablation else settings_of(strategy or ["paper"], start)
    place, names = Store(store), expand(datasets)
    counts = run(
        place,
        names,
        protocols,
        settings,
        trials,
        data=data,
        device=device,
        dtype=dtype,
        jobs=jobs,
        block=block,
        retry_failed=retry_failed,
        tell=print_line,
    )
    print_line(f"{counts['new']} new rows, {counts['failed']} failed, {counts['there']} were there.")
    found = outcome(place, names, protocols, settings, trials)
    if found.failed and not found.finished:
        tell("error", f"bench run: none of {found.failed} rows is finished; the first {found.reason}", "bold red")
        raise typer.Exit(1)
    if found.failed:
        of_all = f"{found.failed} of {found.failed + found.finished} rows failed"
        tell("warning", f"bench run: {of_all}; the first {found.reason}", "yellow")


@bench_app.command("status")
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


@bench_app.command("tables")
def tables_command(store: StoreOption = STORE, out: OutOption = Path("bench-tables")) -> None:
    """Write every table that the store fills, as Markdown, CSV and LaTeX."""
    from lowchurn.bench._report import write_tables
    from lowchurn.bench._store import Store

    for path in write_tables(Store(store), out):
        print_line(path)


@bench_app.command("report")
def report_command(store: StoreOption = STORE, out: OutOption = Path("bench-report")) -> None:
    """Make one page of all tables and figures."""
    from lowchurn.bench._report import write_report
    from lowchurn.bench._store import Store

    print_line(write_report(Store(store), out))


@bench_app.command("import")
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


@bench_app.command("prepare")
def prepare_command(
    path: Annotated[Path, Argument(help="File to write, which ends in .npz.")],
    datasets: Annotated[list[str] | None, Argument(help="Data sets or groups. Default: openml.")] = None,
    data: DataOption = None,
) -> None:
    """Pack data sets into one file that needs nothing but numpy to read."""
    from lowchurn.bench._loading import prepare

    print_line(f"{path}: {prepare(path, datasets or ['openml'], data) / 1e6:.1f} MB")


@data_app.command("list")
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


@data_app.command("fetch")
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
