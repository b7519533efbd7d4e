"""The report: all files or none, never over the store, and names from a store lead nowhere else."""

import os

import pytest

from lowchurn._charts import Chart
from lowchurn.bench import _figures as figures
from lowchurn.bench import _report as report
from lowchurn.bench._report import table_files, write_report, write_tables
from lowchurn.bench._store import Store
from tests.bench.test_tables import ADULT, ROWS, model
from tests.report.test_page import CONTRAST, browser, needs_chromium  # noqa: F401 - browser is a fixture


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store")
    made.append(ADULT)
    return made


@pytest.fixture
def quick(monkeypatch):
    """Figures without a renderer."""
    monkeypatch.setattr(Chart, "png", lambda chart: b"\x89PNG")


def everything(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("write", [write_tables, write_report])
def test_the_store_is_never_written_into(store, tmp_path, write, monkeypatch):
    before = everything(store.folder)
    (tmp_path / "link").symlink_to(store.folder)
    monkeypatch.chdir(store.folder)
    places = [
        store.folder,
        store.segments,
        store.segments / "deeper",
        tmp_path / "link",
        tmp_path / "link" / "segments",
    ]
    for out in [*places, type(tmp_path)("."), type(tmp_path)("segments/x")]:
        with pytest.raises(ValueError, match="--out must not be the store"):
            write(store, out)
    assert everything(store.folder) == before
    assert not (store.segments / "deeper").exists()


@pytest.mark.parametrize("write", [write_tables, write_report])
def test_a_place_that_cannot_be_written_is_said_before_any_work(store, tmp_path, write, monkeypatch):
    monkeypatch.setattr(report, "all_tables", lambda rows: pytest.fail("work was done"))
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(ValueError, match="--out must be a folder, but .*file is a file"):
            write(store, out)
    if os.getuid():  # root may write everywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ValueError, match="cannot be written"):
            write(store, tmp_path / "closed" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_report_that_fails_leaves_the_old_one_whole(store, tmp_path, quick, monkeypatch):
    write_report(store, tmp_path / "out")
    old = everything(tmp_path / "out")
    assert {"report.html", "tables", "figures"} == {p.name for p in (tmp_path / "out").iterdir()}
    store.append(ROWS)

    def broken(*arguments):
        raise ValueError("no renderer")

    monkeypatch.setattr(figures, "cost_figure", broken)
    with pytest.raises(ValueError, match="no renderer"):
        write_report(store, tmp_path / "out")
    assert everything(tmp_path / "out") == old
    monkeypatch.undo()
    monkeypatch.setattr(Chart, "png", lambda chart: b"\x89PNG")
    real = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="cannot write .*No space left"):
        write_report(store, tmp_path / "out")
    assert everything(tmp_path / "out") == old  # and no drafts


def test_files_of_the_user_in_the_folder_stay(store, tmp_path, quick):
    (tmp_path / "out" / "tables").mkdir(parents=True)
    (tmp_path / "out" / "tables" / "mine.md").write_text("mine")
    page = write_report(store, tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    assert (tmp_path / "out" / "tables" / "mine.md").read_text() == "mine"
    assert (tmp_path / "out" / "tables" / "all-raw-warm.md").exists()


def test_links_and_folders_in_the_place_of_files_are_refused(store, tmp_path, quick):
    (tmp_path / "out" / "tables").mkdir(parents=True)
    segment = next(store.segments.iterdir())
    before = segment.read_bytes()
    link = tmp_path / "out" / "tables" / "all-raw-warm.md"
    link.symlink_to(segment)
    with pytest.raises(ValueError, match="must not overwrite --store"):
        write_report(store, tmp_path / "out")
    link.unlink()
    link.mkdir()
    with pytest.raises(ValueError, match="all-raw-warm.md.*it is a folder"):
        write_report(store, tmp_path / "out")
    assert segment.read_bytes() == before
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file()] == []


def test_figures_are_files_and_a_part_of_the_page(store, tmp_path, quick):
    page = write_report(store, tmp_path / "out").read_text()
    folder = tmp_path / "out" / "figures"
    assert {path.suffix for path in folder.iterdir()} == {".svg", ".png"}
    assert len(list(folder.glob("*.svg"))) == page.count("<figure") > 2
    assert (folder / "pareto-fcn-1000-1000-raw-warm.svg").read_text().startswith("<svg")


def test_the_store_is_read_once_and_each_table_is_built_once(store, tmp_path, quick, monkeypatch):
    calls = []

    def counted(real, name):
        def call(*arguments):
            calls.append((name, arguments[1:]))
            return real(*arguments)

        return call

    for place, name in ((Store, "rows"), (report, "all_tables"), (report, "cold_accuracy_table")):
        monkeypatch.setattr(place, name, counted(getattr(place, name), name))
    write_report(store, tmp_path / "out")
    named = [name for name, _ in calls]
    assert (named.count("rows"), named.count("all_tables")) == (1, 1)
    tables = [str(a) for name, a in calls if name == "cold_accuracy_table"]
    assert len(tables) == len(set(tables)) > 1


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_is_read_in_the_dark(store, tmp_path, quick, browser, scheme):  # noqa: F811
    page = write_report(store, tmp_path / "out")
    view = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 800})
    view.goto(page.as_uri())
    assert view.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert view.evaluate(CONTRAST) >= 4.5
    figures = view.locator("figure").all()
    assert len(figures) > 2
    for figure in figures:
        box = figure.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390
        assert figure.locator("svg").count() == figure.locator(".chart").count() > 0
    view.close()


@needs_chromium
def test_wide_tables_fit_on_paper_and_keep_their_names_in_sight_on_a_phone(tmp_path, quick, browser):  # noqa: F811
    store = Store(tmp_path / "store")
    store.append(ROWS)
    page = write_report(store, tmp_path / "out")
    view = browser.new_page(viewport={"width": 700, "height": 900})
    view.goto(page.as_uri())
    assert max(table.locator("th").count() for table in view.locator("table").all()) > 15
    view.emulate_media(media="print")
    assert view.evaluate("document.scrollingElement.scrollWidth") <= 700
    view.emulate_media(media="screen")
    view.set_viewport_size({"width": 390, "height": 800})
    frame = view.locator(".scroll").nth(1)
    frame.evaluate("frame => { frame.scrollLeft = 200; }")
    assert frame.locator("td.label").first.bounding_box()["x"] >= frame.bounding_box()["x"]
    view.close()


def test_names_from_a_store_lead_nowhere_else(store, tmp_path, quick):
    odd = [
        model("adult", "distill", "lam=0.1", 0.84, 0.01, start="../../up", loss="../../<b>"),
        model("adult", "cold", "", 0.8, 0.1, loss="../../<b>"),
    ]
    files = table_files(list(report.all_tables([*ADULT, *odd])))
    assert files
    assert all("/" not in name and "<" not in name for name in files)
    store.append([odd[1]])
    page = write_report(store, tmp_path / "a" / "b" / "out").read_text()
    assert "<b>" not in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "store"]


@pytest.mark.parametrize(
    "change",
    [
        {"network": ""},
        {"network": "fcn"},
        {"network": "../x-1"},
        {"parameters": {"lam": 0.5}},
        {"parameters": {"lam": 0.5, "start": "hot"}},
        {"parameters": {"lam": "...", "start": "warm"}},
        {"strategy": "two-teachers", "parameters": {"members": 8}},
        {"strategy": "anchor-to-distill", "parameters": {"share": "much"}},
        {"strategy": "soup", "parameters": {}},
        {"strategy": "cold"},
    ],
)
def test_rows_that_no_run_makes_are_one_line(store, tmp_path, change):
    store.append([model("bank", "distill", "lam=0.5", 0.8, 0.1) | change])
    for write in (write_tables, write_report):
        with pytest.raises(ValueError, match="contains a row that no run makes .*'bank'"):
            write(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
