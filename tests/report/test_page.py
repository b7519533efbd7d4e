"""The page: whole, escaped, and alive in a real browser."""

import shutil
import sys
from html.parser import HTMLParser

import jinja2
import numpy as np
import pandas as pd
import pytest

import lowchurn
from lowchurn._html import environment, words
from lowchurn.report import html_page, write_html

EVIL = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def audit_with_evil(rows=1500, seed=0, **options):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    score = np.clip(0.3 + 0.4 * y + rng.normal(0, 0.25, rows), 0.001, 0.999)
    moved = np.clip(score + rng.normal(0, 0.08, rows), 0.001, 0.999)
    names = np.array(["good", EVIL])
    old = pd.DataFrame(
        {
            "id": [f"{i} {EVIL if i % 7 == 0 else ''}" for i in range(rows)],
            "y": names[y],
            "country": rng.choice(["de", "fr", EVIL, '" onmouseover="window.hacked=1', "\x00\x07"], rows),
            "age": rng.integers(18, 80, rows),
            "score": score,
        }
    )
    new = pd.DataFrame({"id": old.id, "score": moved})
    return lowchurn.audit.audit(old, new, label="y", by=["country", "age"], classes=list(names), **options)


@pytest.fixture(scope="module")
def audit():
    return audit_with_evil()


FRONTIER = [
    {"strategy": EVIL, "setting": f"lam={lam}", "accuracy": 0.8 + lam / 20, "churn": lam / 10, "broken": lam / 30,
     "accuracy_low": 0.79, "accuracy_high": 0.86, "chosen": lam == 0.5}
    for lam in (0.1, 0.5, 0.9)
]  # fmt: skip


@pytest.fixture(scope="module")
def page(audit):
    verdict = audit.gate(max_churn=0.1, not_worse_than=0.02, slices={"country": {"max_churn": 0.3}})
    return html_page(audit, verdict, frontier=FRONTIER)


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order; what would run or load is remembered."""

    def __init__(self):
        super().__init__()
        self.open, self.risky = [], []

    def handle_starttag(self, name, attributes):
        if name not in {"meta", "input", "br", "link", "img", "wbr"}:
            self.open.append(name)
        if name in {"img", "iframe", "object", "embed", "link"}:
            self.risky.append(name)
        self.risky += [key for key, value in attributes if key.startswith("on") or key in {"src", "action"}]
        self.risky += [value for key, value in attributes if key == "href" and not value.startswith("#")]

    def handle_endtag(self, name):
        assert self.open.pop() == name


def test_the_page_is_whole_small_and_loads_nothing(page):
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.risky == []
    assert len(page.encode()) < 2_000_000
    assert page.count("<script>") == 1
    assert "http://" not in page
    assert "https://" not in page


def test_the_verdict_comes_first_and_every_section_is_there(page):
    names = ["verdict", "audited", "figures", "matrix", "slices", "drivers", "scores", "frontier", "flips", "made"]
    order = [page.index(f'id="{name}"') for name in names]
    assert order == sorted(order)


def test_sections_without_data_are_left_out():
    rows = pd.DataFrame({"id": range(5), "prediction": list("abcab")})
    page = html_page(lowchurn.audit.audit(rows, rows))
    for name in ("slices", "drivers", "scores", "frontier"):
        assert f'id="{name}"' not in page
    assert "identical to the base" in page
    assert "No decision changed." in page


def test_many_classes_slices_and_long_values_stay_small():
    rng = np.random.default_rng(0)
    n = 6000
    old = pd.DataFrame(
        {"id": range(n), "prediction": rng.integers(0, 200, n), "s": [f"{i % 900} " + "x" * 300 for i in range(n)]}
    )
    new = old[["id"]].assign(prediction=rng.integers(0, 200, n))
    audit = lowchurn.audit.audit(old, new, by="s", sample=1000)
    page = html_page(audit, audit.gate(slices={"*": {"max_churn": 0.5}}))
    assert len(page.encode()) < 2_000_000
    assert "classes with fewer flips are not shown" in page


def rendered(source, **values):
    return environment().from_string(source).render(values)


def test_templates_escape_text_and_attributes():
    page = rendered('<p title="{{ title }}">{{ it }}{{ it|words }}</p>', it="<b>", title='"&<')
    assert page == '<p title="&#34;&amp;&lt;">&lt;b&gt;&lt;b&gt;</p>'
    assert rendered("{{ it }}{{ it|words }}", it="\x00\ud800") == "\ufffd" * 4
    assert rendered("{{ it|words }}", it=words("a-b")) == '<span class="whole">a-b</span>'


def test_a_name_without_a_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="title"):
        rendered("{{ title }}")
    with pytest.raises(jinja2.UndefinedError, match="title"):
        rendered("{{ title|words }}")


def test_short_words_stay_whole_and_long_ones_break_after_a_separator():
    assert words("in Some-college") == 'in <span class="whole">Some-college</span>'
    long = '<span class="long">/<wbr>data/<wbr>release/<wbr>candidate.<wbr>parquet</span>'
    assert words("/data/release/candidate.parquet") == long


def test_without_jinja_the_error_names_the_extra(monkeypatch):
    environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'pip install "lowchurn\[report\]"'):
        environment()


def test_the_notebook_view_is_escaped(audit):
    shown = audit._repr_html_()
    assert "changed decisions" in shown
    assert "<script" not in shown


def test_a_frontier_without_accuracy_is_refused(audit):
    with pytest.raises(ValueError, match="accuracy"):
        html_page(audit, frontier=[{"churn": 0.1}])


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(params=["light", "dark"])
def opened(request, browser, audit, tmp_path):
    path = tmp_path / "report.html"
    verdict = audit.gate(max_churn=0.1, slices={"country": {"max_churn": 0.3}})
    write_html(path, audit, verdict, frontier=FRONTIER)
    view = browser.new_page(color_scheme=request.param)
    view.problems, view.requested = [], []
    view.on("console", lambda message: view.problems.append(message.text))
    view.on("pageerror", lambda error: view.problems.append(str(error)))
    view.on("request", lambda r: view.requested.append(r.url))
    view.goto(path.as_uri())
    yield view
    assert view.problems == []
    assert view.requested == [path.as_uri()]
    assert view.evaluate("window.hacked") is None
    view.close()


def column(view, number):
    return view.eval_on_selector_all(
        f"#flip-table tbody tr:not([hidden]) > :nth-child({number})", "cells => cells.map(c => c.textContent)"
    )


@needs_chromium
def test_the_table_sorts_by_mouse_and_by_keyboard(opened):
    heads = opened.eval_on_selector_all("#flip-table thead th", "heads => heads.map(h => h.textContent)")
    place = heads.index("age") + 1
    head = opened.locator(f"#flip-table thead th:nth-child({place})")
    head.locator("button").click()
    ages = [int(v) for v in column(opened, place)]
    assert ages == sorted(ages)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    opened.keyboard.press("Enter")
    assert [int(v) for v in column(opened, place)] == sorted(ages, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    assert "Sorted by age" in opened.locator("#flip-status").text_content()


@needs_chromium
def test_the_table_filters(opened, audit):
    field = opened.locator("input[type=search]")
    field.fill("FR broken")
    wanted = [f for f in audit.flips if f["country"] == "fr" and f["label"] == f["old"]]
    assert len(column(opened, 1)) == len(wanted) > 0
    assert opened.locator("#flip-status").text_content().startswith(f"{len(wanted)} of {len(audit.flips)} rows")
    field.fill("no row holds this")
    assert column(opened, 1) == []
    field.fill("")
    assert len(column(opened, 1)) == len(audit.flips)


@needs_chromium
def test_data_is_shown_as_text(opened):
    assert EVIL in opened.locator("#slices").text_content()
    assert opened.evaluate("document.scripts.length") == 1
    assert opened.evaluate("document.images.length") == 0


@needs_chromium
def test_it_serves_people_who_use_a_keyboard_or_a_screen_reader(opened):
    assert opened.evaluate("document.documentElement.lang") == "en"
    for selector, rule in (
        ("th", "e.scope"),
        ("svg", "e.querySelector('title') && e.querySelector('desc')"),
        ("section", "document.getElementById(e.getAttribute('aria-labelledby'))"),
        ("nav a", "document.querySelector(e.getAttribute('href'))"),
        ("table", "e.caption"),
    ):
        assert opened.evaluate(f"[...document.querySelectorAll('{selector}')].every(e => {rule})"), selector
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    contrast = opened.evaluate(CONTRAST)
    assert contrast >= 4.5, f"the faintest text has a contrast of {contrast:.2f}"


# The least contrast between text and its background over all elements with text of their own.
CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
  let least = 99;
  for (const e of document.querySelectorAll("body *:not(script):not(svg *)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
}"""  # noqa: E501


@needs_chromium
def test_it_prints_on_paper_and_fits_a_phone(opened):
    paper = opened.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    opened.emulate_media(media="print")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.locator("input[type=search]").is_visible()
    opened.emulate_media(media="screen")
    opened.set_viewport_size({"width": 390, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
