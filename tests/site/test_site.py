"""The built site, as a reader without a network opens it from the disk."""

import csv
import io
import json
import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.report.test_page import browser, needs_chromium  # noqa: F401 - browser is a fixture

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
PAGES = [page for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]
LOOKED_AT = [
    *("index", "get_started", "guide", "budget", "audit", "evidence", "glossary", "design", "results/sticky_users"),
    *("auto_examples/index", "auto_examples/plot_lightgbm", "api/index"),
    *("api/generated/lowchurn.estimator.LowChurnClassifier", "auto_examples/plot_catboost", "py-modindex"),
    *("huggingface", "mlflow", "changelog", "results/table1"),
]
# Texts whose colour differs too little from what is behind them (WCAG: 4.5 to 1), without drawings.
FAINT = r"""() => {
  const parts = colour => colour.match(/[\d.]+/g).map(Number);
  const light = colour => parts(colour).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0.05);
  const behind = element => {
    while (element.parentElement && (parts(getComputedStyle(element).backgroundColor)[3] ?? 1) < 0.9) {
      element = element.parentElement;
    }
    return getComputedStyle(element).backgroundColor;
  };
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.offsetParent || element.closest("svg, script")) continue;
    const both = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    if (both[0] / both[1] < 4.5) found.push(texts.currentNode.textContent.trim());
  }
  return found;
}"""

pytestmark = pytest.mark.site


class Anchors(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.update(filter(None, (found.get("id"), found.get("name"))))
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.add(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.add(found["href"])


@pytest.fixture(scope="module")
def parsed():
    assert PAGES, "make docs builds the site"
    return {page: Anchors(page.read_text(encoding="utf-8")) for page in PAGES}


def test_every_link_leads_to_a_page_and_an_anchor(parsed):
    lost = []
    for page, found in parsed.items():
        for link in found.links | found.loaded:
            if re.match(r"[a-z]+:", link):
                continue
            path, anchor = urldefrag(unquote(link))
            target = (page.parent / path.split("?")[0]).resolve() if path else page
            if not target.is_file() or (anchor and target in parsed and anchor not in parsed[target].ids):
                lost.append(f"{page.relative_to(SITE)}: {link}")
    assert not lost


def test_nothing_is_loaded_from_elsewhere(parsed):
    away = {link for found in parsed.values() for link in found.loaded if re.match(r"(https?:)?//", link)}
    assert not away


def test_pages_of_the_api_show_nothing_private(parsed):
    pages = [page for page in parsed if page.parent.name == "generated"]
    assert len(pages) > 70
    for page in pages:
        text = re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))
        assert not re.search(r"lowchurn(\.\w+)*\._\w", text), page.name


def test_the_gallery_has_ten_examples_with_pictures_and_each_is_fast():
    examples = sorted(path.stem for path in (ROOT / "examples").glob("plot_*.py"))
    assert len(examples) >= 10
    pictures = {path.stem for path in (SITE / "_images").glob("sphx_glr_plot_*.png")}
    for name in examples:
        assert f"sphx_glr_{name}_001" in pictures
    seconds = json.loads((ROOT / "docs" / "auto_examples" / "cpu_seconds.json").read_text(encoding="utf-8"))
    assert set(seconds) >= set(examples)
    assert {name: spent for name, spent in seconds.items() if spent >= 30} == {}


def test_the_tables_of_results_can_be_downloaded_as_csv(parsed):
    (link,) = {link for link in parsed[SITE / "evidence.html"].links if link.endswith("tables.zip")}
    with zipfile.ZipFile(SITE / link) as archive:
        name = next(name for name in archive.namelist() if name.startswith("table1/01-"))
        rows = list(csv.DictReader(io.StringIO(archive.read(name).decode())))
        pages = {Path(name).parent.name for name in archive.namelist()}
    assert (rows[0]["dataset"], rows[0]["cold"], rows[0]["distill"]) == ("adult", "36.22", "16.88")
    assert pages >= {"table1", "sizes", "dial", "sticky", "sticky_users", "dial_users", "search"}


@pytest.fixture
def view(browser):  # noqa: F811
    page = browser.new_page()
    page.wrong, page.asked = [], []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.close()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_their_window(view, scheme, width):
    view.set_viewport_size({"width": width, "height": 900})
    view.emulate_media(color_scheme=scheme)
    for name in LOOKED_AT:
        view.goto((SITE / f"{name}.html").as_uri())
        assert view.evaluate("document.documentElement.dataset.theme") == scheme
        wide = view.evaluate("document.scrollingElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} wide"
        assert not view.evaluate(FAINT), name
        assert not view.evaluate("[...document.images].filter(i => i.offsetParent && !i.naturalWidth).map(i => i.src)")
    assert not view.wrong
    assert {url.split(":")[0] for url in view.asked} <= {"file", "data"}


@needs_chromium
@pytest.mark.parametrize(
    ("words", "page"),
    [("sticky margin", "strategies.html"), ("rows_to_certify", "lowchurn.selection.rows_to_certify.html")],
)
def test_search_works_from_the_disk(view, words, page):
    view.goto((SITE / "search.html").as_uri() + "?q=" + words.replace(" ", "+"))
    view.wait_for_selector("#search-results li a")
    view.wait_for_function("document.querySelectorAll('#search-results li a').length > 0")
    links = view.eval_on_selector_all("#search-results li a", "found => found.map(a => a.href)")
    assert any(page in link for link in links), links
    view.goto(next(link for link in links if page in link))
    assert view.title()
    assert {url.split(":")[0] for url in view.asked} <= {"file", "data"}


@needs_chromium
def test_the_calculator_computes(view):
    view.goto((SITE / "budget.html").as_uri())
    table = lambda: view.eval_on_selector_all("#calculated tbody tr", "rows => rows.map(r => r.innerText.split('\\t'))")  # noqa: E731
    assert [row[0] for row in table()] == ["budget 0.5 %", "budget 1 %", "budget 2 %", "budget 5 %", "plain retrain"]
    assert table()[-1][1:] == ["8,800", "4,400", "26,600", "22,200", "-"]  # 100,000 rows, 0.5 a change, 20 an error
    view.fill("input[name=change]", "5")
    assert table()[-1][4] == "-17,400"
    assert [row[5] for row in table()[:4]] == ["2,884", "1,441", "719", "260"]
