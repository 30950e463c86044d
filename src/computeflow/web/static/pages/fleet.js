// Fleet: every GPU on one canvas, by switch and node; hover or arrow keys tell of one, Enter opens its run.

import { el, heading, lead, stats, table } from "../dom.js";
import { colour, fitted } from "../fitted.js";
import { drawCells, drawUnknown, layOut, neighbour } from "../fleet_drawing.js";
import { plural, seconds, share, when, whole } from "../format.js";
import { navigate, withQuery } from "../router.js";

const WORST = 10;
/** The top of MFU's scale, unless one is higher: 20 of the 23 published runs that state it (found_runs.csv) are below. */
const HIGH_MFU = 0.6;
const WRITE = { mfu: share, wait: seconds, power: value => `${whole(value)} W`, temperature: value => `${whole(value)} °C` };

/** The map's columns as cells: the node of each, and its values. */
function cellsOf(map) {
  const nodeOf = [], rankOf = [], localOf = [];
  map.cells.forEach((count, node) => {
    const ranks = [], spans = map.ranks[node];
    for (let at = 0; at < spans.length; at += 2) for (let rank = spans[at]; rank <= spans[at + 1]; rank += 1) ranks.push(rank);
    for (let local = 0; local < count; local += 1) { nodeOf.push(node); rankOf.push(ranks[local] ?? null); localOf.push(local); }
  });
  return { nodeOf, rankOf, localOf, count: nodeOf.length };
}

/** What is known of one GPU apart from its node. */
const ownValue = (measure, cell) => measure.by_cell[cell] ?? measure.by_gpu[cell] ?? null;

function valuesOf(measure, cells) {
  return cells.nodeOf.map((node, cell) => ownValue(measure, cell) ?? measure.by_node[node] ?? null);
}

function written(measure, value, health) {
  if (value === null) return "unknown";
  return measure.name === "health" ? health[value] : WRITE[measure.name](value);
}

/** A title inside a sentence: abbreviations stay as they are. */
const inside = title => title === title.toUpperCase() ? title : title.toLowerCase();

/** The smallest and the largest that is known; one of them where they read the same, or the smallest is nothing. */
function rangeOf(measure, values, health) {
  const known = values.filter(value => value !== null);
  const [low, high] = [known.reduce((least, value) => Math.min(least, value), Infinity), known.reduce((most, value) => Math.max(most, value), -Infinity)].map(value => written(measure, value, health));
  if (measure.name === "wait") return known.some(value => value > 0) ? `up to ${high}` : "none";
  return low === high ? low : `${low} to ${high}`;
}

function ends(measure, values, health) {
  if (measure.name === "health") return [0, health.length - 1];
  const known = values.filter(value => value !== null);
  const high = known.reduce((most, value) => Math.max(most, value), 0), low = known.reduce((least, value) => Math.min(least, value), Infinity);
  if (measure.name === "mfu") return [0, Math.max(high, HIGH_MFU)];
  return measure.name === "wait" || !(low < high) ? [0, high || 1] : [low, high];
}

/** Findings and faults of a node, and since when it is silent. */
function wrongWith(map, node) {
  const since = map.silent_since[node];
  return [since === undefined ? null : `silent since ${when(since)}`, map.notes[node]].filter(Boolean).join("; ");
}

/** GPUs by their own number where a value is of each of them; else the ranks on them, where these are known. */
const ownName = (measure, cells, cell) => (measure.by_gpu[cell] ?? null) === null ? nameOf(cells, cell) : `GPU ${whole(cells.localOf[cell])}`;

const nameOf = (cells, cell) => cells.rankOf[cell] === null ? `GPU ${whole(cells.localOf[cell])}` : `rank ${whole(cells.rankOf[cell])}`;

function tell(content, cells, all, cell) {
  const { result: map, health } = content, node = cells.nodeOf[cell], run = map.runs[map.run_of[node]];
  const facts = map.measures.map((measure, at) => `${inside(measure.title)} ${written(measure, all[at][cell], health)}`);
  return [
    el("strong", null, `${nameOf(cells, cell)} on ${map.nodes[node]}`), `: ${facts.join(", ")}. `,
    run ? ["Run ", runLink(run)] : "No run.",
    wrongWith(map, node) ? el("span", { class: "quiet" }, ` ${wrongWith(map, node)}`) : null,
  ].flat().filter(Boolean);
}

const runLink = run => run ? el("a", { href: `/runs/${encodeURIComponent(run.id)}` }, run.name) : null;

/** The MFU is that of a run, the same on all of its GPUs. */
function runsByMfu(map) {
  const nodes = run => map.run_of.filter(at => map.runs[at] === run).length;
  const rows = map.runs.filter(run => run.mfu !== null).sort((a, b) => a.mfu - b.mfu).slice(0, WORST);
  return table([
    { title: "run", cell: runLink },
    { title: "state", cell: run => el("span", { class: "tag" }, run.state) },
    { title: "nodes", number: true, cell: run => whole(nodes(run)) },
    { title: "MFU", number: true, cell: run => share(run.mfu) },
  ], rows, { caption: "Runs, lowest MFU first" });
}

function worst(content, cells, measure, values) {
  const { result: map, health } = content, best = measure.better === "more" ? 1 : -1;
  const cellsByNode = new Map();
  values.forEach((value, cell) => {
    if (value === null) return;
    const node = cells.nodeOf[cell], known = cellsByNode.get(node);
    if (known === undefined || best * (values[known] - value) > 0) cellsByNode.set(node, cell);
  });
  const rows = [...cellsByNode.entries()].sort(([, a], [, b]) => best * (values[a] - values[b])).slice(0, WORST);
  const names = rows.map(([, cell]) => ownValue(measure, cell) === null ? "all" : ownName(measure, cells, cell));
  const wrong = rows.some(([node]) => wrongWith(map, node)), byRun = map.grouped_by === "run";
  const run = { title: "run", cell: ([node]) => runLink(map.runs[map.run_of[node]]) };
  return table([
    byRun ? run : null,
    { title: "node", cell: ([node]) => map.nodes[node] },
    { title: names.some(name => name.startsWith("rank")) ? "rank" : content.of, cell: row => names[rows.indexOf(row)] },
    { title: inside(measure.title), unit: measure.name === "health" ? "" : `worst ${content.of}`, number: measure.name !== "health", cell: ([, cell]) => written(measure, values[cell], health) },
    byRun ? null : run,
    wrong ? { title: "what is wrong", wide: true, cell: ([node]) => wrongWith(map, node) || null } : null,
  ].filter(Boolean), rows, { caption: `Worst nodes${byRun ? " of the runs" : ""} by ${inside(measure.title)}` });
}

/** Drawn as the map is: its shades in even steps of the value, unknown cells as they are there. */
function legend(measure, low, high, health, palette, placed, values) {
  const unknown = values.includes(null) ? el("span", null, el("canvas", { "aria-hidden": "true", class: "cells" }), "unknown") : null;
  if (unknown) drawUnknown(unknown.firstChild, placed, colour);
  if (measure.name === "health") return el("div", { class: "legend" }, health.map((name, at) => el("span", null, el("span", { class: "swatch", style: { background: palette.of(at) } }), name)), unknown);
  const stops = Array.from({ length: 17 }, (_, at) => palette.of(low + (high - low) * at / 16));
  const bar = el("span", { class: "scale", style: { background: `linear-gradient(to right, ${stops.join(", ")})` } });
  const from = low === 0 ? "0" : WRITE[measure.name](low), root = measure.name === "wait";
  return el("div", { class: "legend" }, el("span", null, from, bar, `${WRITE[measure.name](high)}${root ? " a step (square-root scale)" : ""}`), unknown);
}

export function render(content, context) {
  const { result: map, health } = content, cells = cellsOf(map);
  const asked = new URLSearchParams(location.search).get("by");
  const known = map.measures.find(measure => !measure.missing) ?? map.measures[0];
  const measure = map.measures.find(each => each.name === asked) ?? known;
  const all = map.measures.map(each => valuesOf(each, cells)), values = all[map.measures.indexOf(measure)];
  const [low, high] = ends(measure, values, health);
  const facts = el("p", { class: "cell-facts", role: "status" }, el("span", { class: "quiet" }, `Point at a ${content.of} or use the arrow keys; a click or Enter opens its run.`));
  const key = el("div");
  const place = fitted((target, width) => {
    const placed = layOut(map, cells, width), canvas = el("canvas", { tabindex: "0", "data-key": "fleet", role: "img", "aria-label": `${plural(cells.count, content.of)} coloured by ${inside(measure.title)}` });
    const mark = el("div", { class: "mark", hidden: true, style: { width: `${placed.size + 4}px`, height: `${placed.size + 4}px` } });
    const show = cell => {
      mark.hidden = false;
      mark.style.left = `${placed.xs[cell] - 2}px`;
      mark.style.top = `${placed.ys[cell] - 2}px`;
      facts.replaceChildren(...tell(content, cells, all, cell));
    };
    let tapped = null;  // a finger cannot point: its first tap tells, its second opens
    const choose = cell => { if (cell === null || cell === context.state.cell) return; context.state.cell = cell; show(cell); };
    const open = () => { const run = map.runs[map.run_of[cells.nodeOf[context.state.cell]]]; if (run) navigate(`/runs/${encodeURIComponent(run.id)}`); };
    const under = event => { const box = canvas.getBoundingClientRect(); return placed.at(event.clientX - box.left, event.clientY - box.top); };
    canvas.onpointermove = event => {
      const cell = under(event);
      canvas.classList.toggle("over", cell !== null);
      choose(cell);
    };
    canvas.onclick = event => {
      const cell = under(event), first = event.pointerType === "touch" && cell !== tapped;
      choose(cell);
      tapped = cell;
      if (cell !== null && !first) open();
    };
    canvas.onkeydown = event => {
      if (event.key === "Enter" && context.state.cell !== undefined) return open();
      const next = neighbour(placed, context.state.cell, event.key);
      if (next === null) return;
      event.preventDefault();
      choose(next);
    };
    const palette = drawCells(canvas, placed, values, { low, high, categories: measure.name === "health", root: measure.name === "wait", better: measure.better, colour });
    key.replaceChildren(legend(measure, low, high, health, palette, placed, values));
    target.replaceChildren(canvas, mark);
    if (context.state.cell < cells.count) show(context.state.cell);
  }, { class: "drawing fleet" });
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "Coloured by" }, map.measures.map(each =>
    el("button", { class: "button", type: "button", "data-key": each.name, "aria-pressed": String(each === measure), on: { click: () => navigate(withQuery({ by: each.name }), { quietly: true }) } }, each.title)));
  const wrong = map.measures.find(each => each.name === "health"), unwell = Object.values(content.problems).reduce((sum, count) => sum + count, 0);
  const silent = health.indexOf("silent"), agents = wrong.by_node.filter(value => value !== null), quiet = content.last_heard && agents.length > 0 && agents.every(value => value === silent);
  return [
    heading("Fleet", tabs),
    lead(content.headline),
    stats([
      { label: content.of === "GPU" ? "GPUs" : "Ranks", value: whole(cells.count) }, { label: "Nodes", value: whole(new Set(map.nodes).size) },
      { label: "Runs", value: whole(map.runs.length) },
      { label: "Nodes with a problem", value: wrong.missing ? null : whole(unwell), note: wrong.missing || (quiet ? `no news since ${when(content.last_heard)}` : null) },
      { label: measure.title, value: measure.missing ? null : rangeOf(measure, values, health), note: measure.missing || (measure.name === "wait" ? "a step" : measure.name === "mfu" ? (context.session.kind === "store" ? "of the runs' last steps" : null) : measure.by_gpu.length ? null : "largest of a node's GPUs") },
    ].filter((each, at) => at < 4 || measure.name !== "health")),
    place, key, facts,
    measure.missing_of ? el("p", { class: "quiet small" }, `${measure.title}: ${measure.missing_of}.`) : null,
    measure.missing ? el("p", { class: "quiet" }, `${measure.title} is unknown: ${measure.missing}.`) : measure.name === "mfu" ? runsByMfu(map) : worst(content, cells, measure, values),
  ].filter(Boolean);
}
