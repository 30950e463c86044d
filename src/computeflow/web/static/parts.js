// Tables and figures of the library's answers, as the HTML report shows them.

import { command, el, table, words } from "./dom.js";
import { plot } from "./plot.js";

const OPEN_ROWS = 24;

/** A table of an answer; `link(row number)` gives the address of its first cell. */
export function partTable(part, { caption = true, link = null } = {}) {
  const columns = part.columns.map((column, at) => ({
    title: column.header, number: column.number, wide: column.wide,
    cell: row => link && at === part.link ? el("a", { href: link(part.rows.indexOf(row)) }, row[at]) : words(row[at]),
  }));
  const drawn = table(columns, part.rows, { caption: caption ? part.title : null, label: part.title });
  for (const at of part.strong) drawn.querySelectorAll("tbody tr")[at]?.classList.add("total");
  return el("section", { class: "part" }, drawn, part.note ? el("p", { class: "quiet small" }, words(part.note)) : null);
}

/** A figure, and its numbers folded below it. */
export function partFigure(part) {
  const long = part.numbers.rows.length > OPEN_ROWS;
  return el("div", { class: "part figure" }, plot(part),
    el("details", null, el("summary", { class: "small quiet" }, `The numbers${long ? ` (${part.numbers.rows.length} rows)` : ""}`), partTable(part.numbers, { caption: false })));
}

function folded(part) {
  return el("details", { class: "part figure" }, el("summary", null, `${part.title} (${part.rows.length} rows)`), partTable(part, { caption: false }));
}

function partCommands(part) {
  return el("section", { class: "part" }, el("h2", null, part.title), part.rows.map(row => command(row[0])));
}

function partNode(part) {
  if (part.kind === "figure") return partFigure(part);
  if (part.columns.length === 1 && part.columns[0].header === "command") return partCommands(part);
  return part.rows.length > OPEN_ROWS ? folded(part) : partTable(part);
}

export function partNodes(parts) {
  return parts.map(partNode);
}
