// Catalog: facts with their sources: kinds, the rows of a kind, one row.

import { get } from "../api.js";
import { el, heading, section, table } from "../dom.js";
import { keepQuery } from "../forms.js";
import { plural, whole } from "../format.js";
import { partNodes, partTable } from "../parts.js";

export const live = false;

const SEARCH_MS = 120;
const rowAddress = (kind, name) => `/catalog/${kind}/${name.split("/").map(encodeURIComponent).join("/")}`;

function kindsTable(content) {
  return table([
    { title: "kind", cell: row => el("a", { href: `/catalog/${row.kind}` }, row.kind) },
    { title: "rows", number: true, cell: row => whole(row.rows) },
    { title: "newest", cell: row => el("span", { class: "nowrap" }, row.newest) },
    { title: "holds", wide: true, cell: row => row.holds },
  ], content.kinds, { label: "Kinds" });
}

function foundTable(content) {
  const { rows, total } = content.found;
  if (!total) return el("p", { class: "quiet" }, `No name has “${content.search}” in it.`);
  return [
    table([
      { title: "name", cell: row => el("a", { href: rowAddress(row.kind, row.name) }, row.name) },
      { title: "kind", cell: row => el("a", { href: `/catalog/${row.kind}` }, row.kind) },
      { title: "also called", wide: true, cell: row => row.as },
    ], rows, { label: "Rows found" }),
    el("p", { class: "quiet small" }, total > rows.length ? `The first ${rows.length} of ${plural(total, "row")}.` : `${plural(total, "row")}.`),
  ];
}

/** A search over all names; the address keeps it, so that the way back from a row leads here again. */
function overview(content, context) {
  const place = el("div");
  const show = found => place.replaceChildren(...[found.found ? foundTable(found) : kindsTable(found)].flat());
  let timer = 0, turn = 0;
  const search = el("input", { type: "search", "aria-label": "Search all names", placeholder: "Search all names", value: content.search, "data-key": "search", maxlength: 80, autocomplete: "off", spellcheck: "false" });
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      if (context.signal.aborted) return;
      const mine = ++turn, query = search.value.trim() ? new URLSearchParams({ search: search.value.trim() }).toString() : "";
      keepQuery(query);
      try {
        const answer = await get(`/catalog${query ? `?${query}` : ""}`, context.signal);
        if (mine === turn) show(answer.content);
      } catch (error) {
        if (error.name === "AbortError") return;
        place.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
        if (error.status === undefined) throw error;
      }
    }, SEARCH_MS);
  });
  show(content);
  return [
    heading("Catalog", search),
    el("p", { class: "lead" }, "Hardware, models, prices and sites. Every row has its source and its date."),
    place,
    content.result.files.length ? el("p", { class: "quiet small" }, `With your own rows of ${content.result.files.join(", ")}.`) : null,
  ];
}

const NAMED = ["name", "offer"];

function list(content) {
  const filter = el("input", { type: "search", "aria-label": "Show rows with", placeholder: "Show rows with" });
  const parts = content.lists.filter(each => each.names.length).map(({ table: part, names }) => partTable(
    { ...part, link: part.columns.findIndex(column => NAMED.includes(column.header)) },
    { link: at => rowAddress(content.group, names[at]) }));
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

const SHOWN = ["note", "source", "as of"];
/** The fields of a row, without those that stand above them. */
function withoutSource(part) {
  return part.columns[0]?.header === "field" ? { ...part, rows: part.rows.filter(([field]) => !SHOWN.includes(field)) } : part;
}

function row(content) {
  return [
    heading(content.title),
    el("p", null, el("a", { href: "/catalog" }, "Catalog"), " / ", el("a", { href: `/catalog/${content.group}` }, content.group)),
    section("Source", el("p", null, ...cited(content.source), el("span", { class: "quiet" }, `, as of ${content.as_of}`)),
      content.note ? el("p", { class: "quiet" }, content.note) : null),
    ...partNodes(content.parts.map(withoutSource)),
    content.also.length ? el("p", { class: "quiet" }, `${plural(content.also.length, "other row")} of this name: `, content.also.map((other, at) => [at ? ", " : "", el("a", { href: rowAddress(other.group, other.name) }, `${other.name} (${other.group})`)])) : null,
  ];
}

export function render(content, context) {
  const nodes = content.kinds ? overview(content, context) : content.lists ? list(content) : row(content);
  return nodes.filter(Boolean);
}
