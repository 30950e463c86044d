// All runs, the latest first; another order and a part of a name or state lie in the address.

import { el, heading, lead, table } from "../dom.js";
import { basisOf, goodputOf, stateOf, stateTag } from "../run_words.js";
import { number, plural, secondsCell, share, usd, when, whole, zone } from "../format.js";
import { keepAddress, navigate, withQuery } from "../router.js";

const FEW = 12;

/** Columns; `value` is what they are ordered by, the largest first, names from A on. */
function columnsOf(runs) {
  const part = basisOf(runs) === "last steps" ? el("span", { class: "unit wide" }, ", last steps") : null;
  return [
    { key: "run", title: "run", value: run => run.name, cell: run => el("a", { href: `/runs/${encodeURIComponent(run.id)}`, title: run.name }, run.name) },
    { key: "state", title: "state", value: stateOf, cell: stateTag },
    { key: "started", title: "started", unit: zone(), wide: true, value: run => run.started, cell: run => el("span", { class: "nowrap" }, when(run.started)) },
    { key: "ranks", title: "ranks", number: true, wide: true, value: run => run.gpus, cell: run => whole(run.gpus) },
    { key: "steps", title: "steps", number: true, wide: true, value: run => run.step, cell: run => whole(run.step) },
    { key: "step", title: ["step", part?.cloneNode(true)], number: true, value: run => run.step_seconds, cell: run => secondsCell(run.step_seconds) },
    { key: "tokens", title: "tokens/s", number: true, wide: true, value: run => run.tokens_per_second, cell: run => number(run.tokens_per_second) },
    { key: "mfu", title: ["MFU", part], number: true, value: run => run.mfu, cell: run => [share(run.mfu), run.mfu_palm === null ? null : el("span", { class: "quiet wide" }, ` (${(100 * run.mfu_palm).toFixed(1)})`)] },
    { key: "goodput", title: "goodput", number: true, wide: true, value: run => run.goodput, cell: run => share(run.goodput) },
    { key: "restarts", title: "restarts", number: true, wide: true, value: run => run.restarts, cell: run => whole(run.restarts) },
    { key: "cost", title: "cost", unit: "$/h", number: true, wide: true, value: run => run.usd_per_hour, cell: run => usd(run.usd_per_hour) },
  ];
}

/** Ordered by a column; what is not known comes last. A key with "-" before it is the other way round. */
function ordered(runs, columns, asked) {
  const column = columns.find(each => each.key === asked.replace("-", ""));
  if (!column) return runs;
  const turn = asked.startsWith("-") ? -1 : 1, known = value => value !== null && value !== undefined;
  return [...runs].sort((a, b) => {
    const [one, other] = [column.value(a), column.value(b)];
    if (!known(one) || !known(other)) return Number(known(other)) - Number(known(one));
    return turn * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : other - one);
  });
}

function sortable(column, asked) {
  const now = asked.replace("-", "") === column.key, turned = now && !asked.startsWith("-") ? `-${column.key}` : column.key;
  const up = now && (column.key === "run" || column.key === "state") !== asked.startsWith("-");
  return {
    ...column, sort: now ? (up ? "ascending" : "descending") : null,
    title: el("button", { class: "sort", type: "button", "data-key": `sort ${column.key}`, on: { click: () => navigate(withQuery({ sort: turned }), { replace: true }) } }, column.title, column.unit ? el("span", { class: "unit" }, `, ${column.unit}`) : null, now ? (up ? " ↑" : " ↓") : null),
    unit: null,
  };
}

/** Shown runs, by part of a name or state; many runs alone have a field for it. */
function filterField(content, context, show) {
  if (content.runs.length <= FEW) return null;
  const field = el("input", { type: "search", "aria-label": "Filter by name or state", placeholder: "Filter by name or state", value: context.query.get("only") ?? "", "data-key": "only", maxlength: 80, autocomplete: "off", spellcheck: "false" });
  field.addEventListener("input", () => {
    context.query.set("only", field.value);  // what is drawn next is filtered alike
    keepAddress(withQuery({ only: field.value || null }));
    show(field.value);
  });
  return field;
}

export function render(content, context) {
  const asked = context.query.get("sort") ?? "", columns = columnsOf(content.runs);
  const runs = ordered(content.runs, columns, asked), place = el("div");
  const show = text => {
    const wanted = text.trim().toLowerCase(), shown = runs.filter(run => `${run.name} ${stateOf(run)}`.toLowerCase().includes(wanted));
    place.replaceChildren(table(columns.map(column => sortable(column, asked)), shown, { label: "Runs" }),
      el("p", { class: "quiet small" }, shown.length < runs.length ? `${whole(shown.length)} of ${plural(runs.length, "run")}. ` : "", `Step (median) and MFU: ${basisOf(content.runs) || "see each run"}. `,
        el("span", { class: "wide" }, `${runs.some(run => run.mfu_palm !== null) ? "In brackets: MFU by PaLM's count. " : ""}Goodput: ${goodputOf(runs)}, since the start.`)));
  };
  show(context.query.get("only") ?? "");
  return [heading("Runs", filterField(content, context, show)), lead(content.headline), place].filter(Boolean);
}
