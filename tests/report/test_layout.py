"""The page in Chromium at three widths, light and dark: nothing is cut, no word is broken, the page does not scroll."""

import dataclasses
import re

import pandas as pd
import pytest

import lowchurn
from lowchurn.report import html_page
from tests.report import sample
from tests.report.test_page import browser, needs_chromium  # noqa: F401 - browser is a fixture

WIDTHS = (390, 768, 1280)
LIMITS = {
    "max_churn": 0.06,
    "not_worse_than": 0.005,
    "slices": {"education": {"max_churn": 0.08, "min_rows": 100}, "marital-status": {"not_worse_than": 0.02}},
}

# What is wrong with the page as it is laid out now, one line a fault.
FAULTS = r"""() => {
  const faults = [];
  const wide = document.scrollingElement.scrollWidth;
  if (wide > innerWidth) faults.push(`the page is ${wide} wide in a window of ${innerWidth}`);
  const seen = (e) => e.checkVisibility({ visibilityProperty: true });
  const name = (e) => `${e.closest("section")?.id ?? "header"} ${e.tagName}.${e.className}: ${e.textContent.slice(0, 40)}`;
  const scrolls = (e) => /auto|scroll/.test(getComputedStyle(e).overflowX);
  const hidden = (e) => e.closest(".stacked thead, .skip");  // kept for screen readers alone where rows are cards
  const inside = (r, box, slack = 1) => r.left >= box.left - slack && r.right <= box.right + slack;
  for (const e of document.querySelectorAll("main *, header *")) {
    if (!seen(e) || hidden(e)) continue;
    const style = getComputedStyle(e);
    if (e.clientWidth && e.scrollWidth > e.clientWidth + 1 && !e.closest("svg")) {
      const free = scrolls(e) || style.display === "inline" || style.position === "absolute";
      const framed = style.overflowX === "visible" && e.closest(".flips, .scroll");  // may be wider than its frame
      if (!free && !framed) faults.push(`cut: ${name(e)}`);
    }
  }
  // Frames that scroll are the exception: the changed rows, whose kind is sticky, and a matrix of many classes.
  for (const e of document.querySelectorAll(".stacked"))
    if (seen(e) && e.scrollWidth > e.clientWidth + 1) faults.push(`a table has to be scrolled: ${name(e)}`);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const e = node.parentElement;
    if (!node.data.trim() || /SCRIPT|STYLE/.test(e.tagName) || e.closest("svg") || !seen(e) || hidden(e)) continue;
    let frame = e;
    while (frame && !scrolls(frame)) frame = frame.parentElement;
    const box = (frame ?? e.closest("section, header, footer")).getBoundingClientRect();
    for (const word of node.data.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const rects = [...range.getClientRects()].filter((r) => r.width > 0);
      if (word[0].length <= 20 && new Set(rects.map((r) => Math.round(r.top))).size > 1) faults.push(`broken: ${word[0]} in ${name(e)}`);
      if (!frame && !rects.every((r) => inside(r, box))) faults.push(`outside: ${word[0]} in ${name(e)}`);
    }
  }
  for (const t of document.querySelectorAll("svg text"))
    if (!inside(t.getBoundingClientRect(), t.ownerSVGElement.getBoundingClientRect(), 0)) faults.push(`svg text: ${t.textContent}`);
  for (const chart of document.querySelectorAll(".chart, .forest")) {
    if (!seen(chart)) continue;
    const box = chart.closest("section").getBoundingClientRect();
    const ticks = [...chart.querySelectorAll(".tick")].map((t) => [t.textContent, t.getBoundingClientRect()]);
    if (ticks.length < 3) faults.push(`hardly a tick: ${name(chart)}`);
    ticks.forEach(([a, r], i) => {
      if (!inside(r, box, 0)) faults.push(`tick ${a} is cut: ${name(chart)}`);
      for (const [b, s] of ticks.slice(i + 1))
        if (r.left < s.right && s.left < r.right && r.top < s.bottom && s.top < r.bottom) faults.push(`ticks ${a} and ${b} overlap: ${name(chart)}`);
    });
  }
  for (const row of document.querySelectorAll(".forest tbody tr"))
    if (seen(row) && ![".value", ".dot"].every((part) => seen(row.querySelector(part)))) faults.push(`no number or no dot: ${name(row)}`);
  const flips = document.querySelector(".flips");
  const kinds = flips ? [...flips.querySelectorAll(".kind")] : [];
  for (const scrolled of [0, 1e6]) {
    if (flips) flips.scrollLeft = scrolled;
    for (const kind of kinds) {
      const r = kind.getBoundingClientRect();
      if (r.left < 0 || r.right > innerWidth || !inside(r, flips.getBoundingClientRect())) faults.push(`kind is out of sight: ${name(kind)}`);
    }
  }
  if (flips) flips.scrollLeft = 0;
  return [...new Set(faults)];
}"""  # noqa: E501


@pytest.fixture(scope="module")
def audit():
    return sample.audited()


@pytest.fixture(scope="module")
def pages(audit, tmp_path_factory):
    """Everything at once; no labels; decisions alone; nothing changed; names that are the worst for a layout."""
    bare, plain = sample.audited(labelled=False), sample.plain()
    same = sample.plain(shifted=False)
    worst = sample.plain(names=("x" * 300, "a-" * 40, "Ünïcode/with/slashes?and=" + "q" * 90))
    made = {
        "full": html_page(audit, audit.gate(LIMITS), frontier=sample.retrained()),
        "sticky": html_page(audit, audit.gate(LIMITS), frontier=sample.stuck()),
        "traffic": html_page(audit, audit.gate(LIMITS), frontier=sample.stuck(labelled=False)),
        "unlabelled": html_page(bare, bare.gate(max_churn=0.03)),
        "plain": html_page(plain, plain.gate(max_churn=0.05)),
        "same": html_page(same),
        "worst": html_page(worst, worst.gate(max_churn=0.001)),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


def assert_whole(browser, page, scheme):  # noqa: F811
    """At every width, with folded parts open or not, nothing of a page is cut and no word is broken."""
    view = browser.new_page(color_scheme=scheme)
    view.goto(page.as_uri())
    for width in WIDTHS:
        view.set_viewport_size({"width": width, "height": 900})
        for opened in ("false", "true"):
            view.evaluate(f"document.querySelectorAll('details').forEach(d => {{ d.open = {opened}; }})")
            assert view.evaluate(FAULTS) == [], f"{page.stem} at {width}, folded parts open: {opened}"
    view.close()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["full", "sticky", "traffic", "unlabelled", "plain", "same", "worst"])
def test_nothing_is_cut_and_no_word_is_broken(browser, pages, name, scheme):  # noqa: F811
    assert_whole(browser, pages / f"{name}.html", scheme)


@needs_chromium
def test_the_checks_see_what_is_cut_and_broken(browser, pages):  # noqa: F811
    """The faults of the page as it was, put back one by one."""
    view = browser.new_page(viewport={"width": 390, "height": 900})
    for style, fault in (
        ("section { min-width: 500px }", "the page is"),
        ("tbody th { word-break: break-all; width: 40px !important; }", "broken"),
        (".checks tr { overflow: hidden; width: 60px }", "cut"),
        (".flips .kind { position: static !important }", "kind is out of sight"),
        (".chart .tick.y { right: auto !important; left: -90px }", "tick"),
        (".forest .value { display: none !important }", "no number"),
    ):
        view.goto((pages / "full.html").as_uri())
        view.add_style_tag(content=style)
        assert any(line.startswith(fault) for line in view.evaluate(FAULTS)), style
    view.close()


@needs_chromium
def test_on_a_phone_the_verdict_is_cards_with_everything_on_them(browser, pages, audit):  # noqa: F811
    view = browser.new_page(viewport={"width": 390, "height": 900})
    view.goto((pages / "full.html").as_uri())
    cards = view.locator("#verdict tbody tr")
    assert cards.count() == len(audit.gate(LIMITS).checks)
    for card in cards.all():
        box, verdict = card.bounding_box(), card.locator(".outcome").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert verdict["y"] - box["y"] < 20  # beside the name, on top
        assert verdict["x"] + verdict["width"] <= box["x"] + box["width"]
    roles = view.eval_on_selector_all("#verdict tbody tr:first-child > *", "cells => cells.map(c => c.role)")
    assert roles == ["rowheader", "cell", "cell", "cell"]
    view.close()


@needs_chromium
def test_paper_holds_the_whole_width(browser, pages):  # noqa: F811
    view = browser.new_page(viewport={"width": 718, "height": 1000}, color_scheme="dark")  # A4 less its margins
    for name in ("full", "plain"):
        view.goto((pages / f"{name}.html").as_uri())
        view.emulate_media(media="print")
        assert view.evaluate("document.scrollingElement.scrollWidth") <= 718
        assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    view.close()


def sections(page):
    return re.findall(r'<section id="(\w+)"', page)


def test_what_is_missing_leaves_no_section_and_no_empty_figure(pages):
    everything = ["verdict", "audited", "figures", "matrix", "slices", "drivers", "scores", "frontier", "flips", "made"]
    found = {path.stem: path.read_text(encoding="utf-8") for path in pages.iterdir()}
    assert sections(found["full"]) == everything
    assert sections(found["unlabelled"]) == [*everything[:7], "flips", "review", "made"]
    assert sections(found["plain"]) == ["verdict", "audited", "figures", "matrix", "flips", "review", "made"]
    for name in ("unlabelled", "plain"):
        assert "undefined</" not in found[name]
        assert "n/a" not in found[name]
        assert "are missing: broken, fixed, lateral, accuracy before, accuracy after, change in accuracy" in found[name]
    for name, page in found.items():
        assert not re.search(r"<(section|table|tbody|ul|dl|figure|dd|h3)[^>]*></\1>", page)
        assert len(page.encode()) < (300_000 if name == "sticky" else 170_000)  # it has 140 settings on curves


def test_the_page_says_what_was_audited(audit, pages):
    page = (pages / "full.html").read_text(encoding="utf-8")
    said = re.sub(r"<[^>]+>", "", page[page.index('id="audited"') :].split("</section>")[0])
    for side in (audit.provenance.old, audit.provenance.new):
        for value in (side.name, side.path, side.sha256, f"{side.rows:,}"):
            assert value in said
    assert "releases/credit-income/lowchurn.toml" in said
    assert "gate.max_churn0.06configuration file" in said
    assert "labelincomegiven" in said
    assert "credit-income 3.1 → credit-income 3.2-rc1" in re.sub(r"<[^>]+>", "", page.split("</header>")[0])


def test_columns_called_as_ours_are_told_apart(audit):
    """``flips`` has the audit's fields under their names and columns of the same name under others."""
    row = {"id": 7, "old": "a", "new": "b", "label": "a", "old (column)": "b", "old decision": "c", "kind": "d"}
    found = dataclasses.replace(audit, flips=[row])
    page = html_page(found)
    part = page[page.index('id="flip-table"') :].split("</table>")[0]
    heads = re.findall(r"<button[^>]*>(.*?)</button>", part)
    assert heads == [
        "kind",
        "id",
        "old decision",
        "new decision",
        "label",
        "old (column)",
        "old decision (column)",
        "kind (column)",
    ]
    assert re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", part.split("<tbody>")[1]) == ["broken", "7", *"abab", "c", "d"]


def test_id_and_slices_called_old_new_label_and_kind_do_not_corrupt_the_table():
    rows = 60
    old = pd.DataFrame(
        {
            "old": [f"row {i}" for i in range(rows)],
            "prediction": ["yes"] * rows,
            "label": [f"label {i % 2}" for i in range(rows)],
            "new": [f"new {i % 3}" for i in range(rows)],
            "kind": "mild",
            "y": ["yes", "no"] * (rows // 2),
        }
    )
    new = old[["old"]].assign(prediction=["no" if i < 10 else "yes" for i in range(rows)])
    found = lowchurn.audit.audit(old, new, id="old", prediction="prediction", label="y", by=["label", "new", "kind"])
    part = re.search(r'id="flip-table".*?</table>', html_page(found), re.S).group(0)
    heads = re.findall(r"<button[^>]*>(.*?)</button>", part)
    table = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in part.split("<tbody>")[1].split("</tr>")[:-1]]
    assert len(set(heads)) == len(heads) == 8
    assert heads[:1] + heads[2:5] == ["kind", "old decision", "new decision", "label"]
    assert len(table) == 10
    for row in table:
        i = int(row[1].split()[1])
        kind, truth = ("broken", "yes") if i % 2 == 0 else ("fixed", "no")
        assert row == [kind, f"row {i}", "yes", "no", truth, f"label {i % 2}", f"new {i % 3}", "mild"]


def test_differences_of_shares_are_in_points(audit, pages):
    page = (pages / "full.html").read_text(encoding="utf-8")
    plain = re.sub(r"<[^>]+>", "", page.split("<script>")[0])
    assert re.search(r"change in accuracy[-+]\d\.\d\d points", plain)
    assert not re.search(r"[+-]\d+\.\d+ ?%", plain)


def test_the_score_shift_draws_the_rows_that_moved_and_counts_the_others(audit, pages):
    page = (pages / "full.html").read_text(encoding="utf-8")
    part = page[page.index('id="scores"') :].split("</section>")[0]
    joint = audit.shift.joint
    rose = sum(int(joint[i, j]) for i in range(len(joint)) for j in range(i + 1, len(joint)))
    fell = int(joint.sum()) - rose - int(joint.trace())
    said = re.sub(r"<[^>]+>", "", part)
    assert f"{rose:,} rows moved to a higher bin and {fell:,} to a lower one; {int(joint.trace()):,} stayed" in said
    assert joint.trace() > 0.7 * joint.sum()  # most rows stay, and their bar is not in the first figure
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="bar-(?:rose|fell)"', part)]
    assert sum(h > 10 for h in heights) > 20
    assert "square-root scale" in said
