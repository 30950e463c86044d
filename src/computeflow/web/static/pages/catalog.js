// Catalog: facts with their sources: kinds, the rows of a kind, one row.

import { el, heading, section, table } from "../dom.js";
import { plural, whole } from "../format.js";
import { partNodes, partTable } from "../parts.js";

export const live = false;

function overview(content) {
  const counts = content.result.counts;
  return [
    heading("Catalog"),
    el("p", { class: "lead" }, "Hardware, models, prices and sites. Every row says where it is from and as of when."),
    table([
      { title: "kind", cell: kind => el("a", { href: `/catalog/${kind}` }, kind) },
      { title: "rows", number: true, cell: kind => whole(counts[kind]) },
    ], content.kinds, { label: "Kinds" }),
    content.result.files.length ? el("p", { class: "quiet small" }, `With your own rows of ${content.result.files.join(", ")}.`) : null,
  ];
}

const NAMED = ["name", "offer"];

function list(content) {
  const filter = el("input", { type: "search", "aria-label": "Show rows with", placeholder: "Show rows with" });
  const parts = content.lists.filter(each => each.names.length).map(({ table: part, names }) => partTable(
    { ...part, link: part.columns.findIndex(column => NAMED.includes(column.header)) },
    { link: at => `/catalog/${content.group}/${names[at].split("/").map(encodeURIComponent).join("/")}` }));
  filter.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    for (const part of parts) for (const row of part.querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  return [heading(content.title, filter), el("p", null, el("a", { href: "/catalog" }, "Catalog")), ...parts];
}

/** Words with their addresses as links; only to https, and never with our own address told. */
function cited(text) {
  return text.split(/(https:\/\/[^\s,;)]+)/).map((part, at) => at % 2 ? el("a", { href: part, rel: "noreferrer noopener", target: "_blank" }, part) : part);
}

function row(content) {
  return [
    heading(content.title),
    el("p", null, el("a", { href: "/catalog" }, "Catalog"), " / ", el("a", { href: `/catalog/${content.group}` }, content.group)),
    section("Source", el("p", null, ...cited(content.source), el("span", { class: "quiet" }, `, as of ${content.as_of}`)),
      content.note ? el("p", { class: "quiet" }, content.note) : null),
    ...partNodes(content.parts),
    content.also.length ? el("p", { class: "quiet" }, `${plural(content.also.length, "other row")} of this name: `, content.also.map((other, at) => [at ? ", " : "", el("a", { href: `/catalog/${other.group}/${encodeURIComponent(other.name)}` }, `${other.name} (${other.group})`)])) : null,
  ];
}

export function render(content) {
  const nodes = content.kinds ? overview(content) : content.lists ? list(content) : row(content);
  return nodes.filter(Boolean);
}
