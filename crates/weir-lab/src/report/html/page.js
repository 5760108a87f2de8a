"use strict";
// Sortable tables: a click on a heading sorts by it, a second one the other way round.
{
  const number = (text) => {
    const found = text.replace(/[\u202f\u2009 ]/g, "").replace("\u2212", "-").match(/-?\d+(\.\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  const sort = (table, heading, column) => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const key = (row) => row.cells[column].textContent;
    const words = !heading.classList.contains("n");
    const order = (a, b) => {
      if (words) return key(a).localeCompare(key(b), "en", { numeric: true });
      const [x, y] = [number(key(a)), number(key(b))];
      return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : x - y;
    };
    const rows = [...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    if (table.tBodies[0].rows.length < 3) continue;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, heading, column));
    });
  }
  // what is folded on a screen is open on paper
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
}
