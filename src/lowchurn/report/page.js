"use strict";
// Sorting and filtering of the tables, and the dial's slider; the page reads well without it.
(() => {
  const compare = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" }).compare;
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value ?? cell.textContent;
  };
  // Some browsers forget what a table is where rows are laid out as cards: say it.
  const roles = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TFOOT: "rowgroup", TR: "row", TD: "cell" };
  for (const part of document.querySelectorAll(".stacked table, .stacked table *, .forest, .forest *")) {
    const role = part.tagName === "TH" ? (part.scope === "col" ? "columnheader" : "rowheader") : roles[part.tagName];
    if (role) part.setAttribute("role", role);
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const said = document.getElementById(table.dataset.status);
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.querySelector("button") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const numbers = [...body.rows].every((row) => key(row, column) === "" || !Number.isNaN(Number(key(row, column))));
        const order = (a, b) => {
          const [x, y] = [key(a, column), key(b, column)];
          if (x === "" || y === "") return (x === "") - (y === "");
          const sign = numbers ? Number(x) - Number(y) : compare(x, y);
          return down ? -sign : sign;
        };
        body.append(...[...body.rows].sort(order));
        if (said) said.textContent = `Sorted by ${button.textContent}, ${down ? "descending" : "ascending"}.`;
      });
    });
  }
  for (const input of document.querySelectorAll("input[data-filters]")) {
    const table = document.getElementById(input.dataset.filters);
    const said = document.getElementById(table.dataset.status);
    const texts = new Map([...table.tBodies[0].rows].map((row) => [row, [...row.cells].map((c) => c.textContent).join(" ").toLowerCase()]));
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of texts) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      if (said) said.textContent = `${shown} of ${texts.size} rows shown.`;
    });
  }
  const tried = new Map([...document.querySelectorAll("#frontier tr[data-row]")].map((row) => [row.dataset.row, row]));
  const pick = document.getElementById("curve");
  const dials = [...document.querySelectorAll(".dial input")].map((input) => {
    const dial = input.closest(".dial");
    const rows = input.dataset.rows.split(" ").map((row) => tried.get(row));
    const marks = document.querySelectorAll(`[data-dial="${input.id}"]`);
    // One curve at a time: what was shown of another one is not marked any more.
    const show = () => {
      const shown = !pick || pick.value === input.id;
      const now = shown ? Number(input.value) : -1;
      dial.hidden = !shown;
      rows.forEach((row, k) => shown ? row.classList.toggle("now", k === now) : row.classList.remove("now"));
      marks.forEach((mark) => mark.classList.toggle("now", Number(mark.dataset.at) === now));
      if (!shown) return;
      for (const slot of dial.querySelectorAll("[data-cell]")) {
        slot.replaceChildren(...[...rows[now].cells[slot.dataset.cell].childNodes].map((node) => node.cloneNode(true)));
      }
      dial.querySelector(".position").textContent = rows[now].dataset.position ?? "";
      input.setAttribute("aria-valuetext", rows[now].cells[0].textContent);
    };
    input.addEventListener("input", show);
    input.addEventListener("change", show);
    return [input, show];
  });
  // The curve that is shown comes last: curves may share a row, and it keeps its mark.
  const showAll = () => dials.sort(([a], [b]) => (pick ? (a.id === pick.value) - (b.id === pick.value) : 0)).forEach(([, show]) => show());
  if (pick) {
    pick.addEventListener("change", showAll);
    pick.closest(".pick").hidden = false;
  }
  showAll();
})();
