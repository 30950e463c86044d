// A line chart (SVG) and a heat map (canvas), drawn by hand: they are redrawn live, with thousands of cells.

import { el, svg } from "./dom.js";
import { colour, fitted, tip } from "./fitted.js";
import { number, plural, seconds, share, whole } from "./format.js";
import { enterable, nearest } from "./keys.js";

const LEFT = 58, RIGHT = 8, TOP = 8, BOTTOM = 26;

/** Round numbers from low to high, about so many. */
export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(times => times * size).find(each => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

/** Places and names of round steps, about one for each 160 pixels; where attempts count anew, of every so many columns. */
function stepMarks(steps, width) {
  const wanted = Math.max(4, width / 160), rising = steps.every((step, at) => !at || step > steps[at - 1]);
  if (!rising) return ticks(0, steps.length - 1, wanted).filter(Number.isInteger).map(at => ({ at, text: whole(steps[at]) }));
  return ticks(steps[0], steps.at(-1), wanted).filter(Number.isInteger).map(step => {
    const next = steps.findIndex(each => each >= step), before = Math.max(next - 1, 0);
    return { at: steps[next] === step ? next : before + (step - steps[before]) / (steps[next] - steps[before]), text: whole(step) };
  });
}

/** A path through the values that are known; one that stands alone is a dot. */
function path(values, x, y) {
  return values.map((value, index) => {
    if (value === null) return "";
    const begins = index === 0 || values[index - 1] === null, alone = begins && (values[index + 1] ?? null) === null;
    return `${begins ? "M" : "L"}${x(index).toFixed(1)},${y(value).toFixed(1)}${alone ? "h0" : ""}`;
  }).join("");
}

/**
 * Lines over one axis, from zero up to `high`; what lies above it ends in an arrow. series: [{ values, kind }], null
 * where a value is not known, the main one first; `limit` is dashed. unit: [size, name] of the marks at the left;
 * `marks(width)`: [{ at, text }] below, `at` is a place among the values, `below` what they are of; `tell(index)`: what the
 * pointer shows, and the keyboard, whose place `at` outlives a drawing.
 */
export function lines(series, { key, label, unit, high, marks, tell, limit = null, below = "", height = 200, at = { column: 0 } }) {
  const count = series[0].values.length, [size, name] = unit;
  return fitted((target, width) => {
    const x = index => LEFT + (width - LEFT - RIGHT) * (count > 1 ? index / (count - 1) : 0.5);
    const y = value => TOP + (height - TOP - BOTTOM) * (1 - Math.min(value, high) / high);
    const levels = ticks(0, high / size, 4).map(value => svg("g", { class: "axis" },
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value * size), y2: y(value * size) }),
      svg("text", { class: "quiet", x: LEFT - 6, y: y(value * size) + 4, "text-anchor": "end" }, `${number(value)} ${name}`)));
    const labels = marks(width).map(({ at, text }) => svg("text", { class: "quiet", x: x(at), y: height - 8, "text-anchor": x(at) < LEFT + 12 ? "start" : x(at) > width - RIGHT - 24 ? "end" : "middle" }, text));
    if (below) labels.push(svg("text", { class: "quiet", x: LEFT - 6, y: height - 8, "text-anchor": "end" }, below));
    const beyond = [...series].reverse().flatMap(({ values, kind }) => values.map((value, index) => value > high
      ? svg("path", { class: `beyond ${kind ?? ""}`, d: `M${x(index).toFixed(1)},0l4,${TOP}h-8z` }) : null));
    const cursor = svg("line", { class: "grid", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label, tabindex: "0", "data-key": key },
      ...levels, ...labels, cursor,
      ...[...series].reverse().map(({ values, kind }) => svg("path", { class: `line ${kind ?? ""}`, "stroke-linecap": "round", d: path(values, x, y) })),
      ...beyond,
      limit === null ? null : svg("path", { class: "line third", d: `M${LEFT},${y(limit)}H${width - RIGHT}` }));
    target.replaceChildren(drawing);
    const note = tip(target);
    const put = index => {
      cursor.setAttribute("x1", x(index));
      cursor.setAttribute("x2", x(index));
      cursor.setAttribute("visibility", "visible");
      note.show(x(index), y(series[0].values[index] ?? 0), tell(index));
    };
    const leave = () => { note.hide(); cursor.setAttribute("visibility", "hidden"); };
    target.onpointermove = event => {
      const left = event.clientX - target.getBoundingClientRect().left;
      put(nearest(Math.round((left - LEFT) / (width - LEFT - RIGHT) * (count - 1)), count));
    };
    target.onpointerleave = leave;
    enterable(drawing, { leave, put: () => put(nearest(at.column, count)), move: columns => { at.column = nearest(nearest(at.column, count) + columns, count); } });
  });
}

/** The end of the scale: the longest step, or where a few are more than twice as long as all others, without them. */
function scaleEnd(values) {
  const sorted = [...values].sort((a, b) => a - b), usual = sorted[Math.floor(0.99 * (sorted.length - 1))] || 1;
  return 1.05 * (sorted.at(-1) > 2 * usual ? usual : sorted.at(-1) || 1);
}

/** Which steps lie above the scale, null where none does. */
function beyondText({ slowest_steps: numbers, slowest_seconds: slowest, steps_per_point: each }, high) {
  const count = slowest.filter(value => value > high).length;
  if (!count) return null;
  const longest = Math.max(...slowest), step = whole(numbers[slowest.indexOf(longest)]);
  return count === 1 ? `step ${step}: ${seconds(longest)}, beyond the scale` : `${plural(count, each > 1 ? "point" : "step")} beyond the scale, the longest step is ${step}, ${seconds(longest)}`;
}

/** What a point says: of one step, or of several the mean and the longest one. */
function pointText({ steps, slowest_steps: numbers, middle_seconds: middle, slowest_seconds: slowest, steps_per_point: each }, index, alone, ideal) {
  const mfu = ideal === null ? "" : `\nMFU ${share(ideal / middle[index])}`, longest = seconds(slowest[index]);
  if (each > 1) return `from step ${whole(steps[index])}, ${whole(each)} steps\nmean ${alone ? "" : "of medians "}${seconds(middle[index])}\nslowest ${longest}, step ${whole(numbers[index])}${mfu}`;
  return `step ${whole(steps[index])}\n${alone ? "" : "median "}${seconds(middle[index])}${alone ? "" : `\nslowest ${longest}`}${mfu}`;
}

/** Step times: the median over ranks, the slowest rank, and what the model's FLOPs take at the peak (`ideal`). */
export function lineChart(curve, { ideal = null, height = 200, at } = {}) {
  const { steps, middle_seconds: middle, slowest_seconds: slowest, steps_per_point: each } = curve;
  const high = scaleEnd(slowest), beyond = beyondText(curve, high);
  const alone = curve.one_rank, one = alone && each === 1;  // one line
  const [usual, worst] = [each === 1 ? "median over ranks" : alone ? "mean step" : "median over ranks, mean", alone ? "slowest step" : each === 1 ? "slowest rank" : "slowest rank and step"];
  const place = lines(one ? [{ values: middle }] : [{ values: middle }, { values: slowest, kind: "second" }], {
    key: "step times", label: `Step time over the run${one ? "" : `: ${usual}, and the ${worst}`}${beyond ? `; ${beyond}` : ""}`,
    unit: high < 1 ? [1e-3, "ms"] : [1, "s"], high, limit: ideal, height, at,
    marks: width => stepMarks(steps, width), below: "step",
    tell: index => pointText(curve, index, alone, ideal),
  });
  return el("div", null, place, el("div", { class: "legend" }, one ? null : [el("span", null, el("i"), usual), el("span", null, el("i", { class: "second" }), worst)],
    each > 1 ? el("span", null, `a point is ${plural(each, "step")}`) : null,
    ideal === null ? null : el("span", null, el("i", { class: "third" }), `a step at an MFU of 100 %: ${seconds(ideal)}`), beyond ? el("span", null, `▲ ${beyond}`) : null));
}

/** Colours from the page to the accent: more is stronger, on light and on dark. */
function scale(parts) {
  const probe = el("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = name => { probe.fillStyle = colour(name); probe.fillRect(0, 0, 1, 1); return probe.getImageData(0, 0, 1, 1).data; };
  const low = rgb("raised"), high = rgb("second");
  return Array.from({ length: parts }, (_, index) => [0, 1, 2].map(at => Math.round(low[at] + (high[at] - low[at]) * index / (parts - 1))));
}

/** The longest step of a cell, and its attempt: each counts its steps anew. */
function stepAt({ steps, longest, attempts }, { row, column }) {
  return { step: steps[column] + (longest?.[row][column] ?? 0), attempt: attempts.findLast(each => each.column <= column).number };
}

const NAMED_RANKS = 8;

/** A cell for each rank and step: the longest step in it; `at` is the keyboard's cell, which outlives a drawing. */
export function heatMap(heat, { choose, at = { column: 0, row: 0 } } = {}) {
  const { ranks, steps, micros } = heat, named = ranks.length <= NAMED_RANKS;
  const low = 1e6 * (heat.middle_seconds ?? 0), high = Math.max(1e6 * (heat.high_seconds ?? 1), 1.25 * low);
  const key = el("span", { class: "scale", "aria-hidden": "true" });
  const place = fitted((target, width) => {
    const inner = width - LEFT - RIGHT;
    const tall = Math.max(3, Math.min(24, Math.floor(360 / ranks.length))) * ranks.length;
    const colours = scale(64);
    key.style.background = `linear-gradient(to right, rgb(${colours[0]}), rgb(${colours.at(-1)}))`;
    const canvas = el("canvas", { width: steps.length, height: ranks.length, tabindex: "0", "data-key": "heat map", role: "img", "aria-label": `Step time of ${plural(ranks.length, "rank")} over ${plural(steps.length, "step")}`, style: { width: `${inner}px`, height: `${tall}px`, "margin-left": `${LEFT}px`, "image-rendering": "pixelated" } });
    const drawing = canvas.getContext("2d"), image = drawing.createImageData(steps.length, ranks.length);
    micros.forEach((row, at) => row.forEach((value, column) => {
      if (value === null) return;
      const [red, green, blue] = colours[Math.max(0, Math.min(63, Math.round(63 * (value - low) / (high - low))))];
      image.data.set([red, green, blue, 255], 4 * (at * steps.length + column));
    }));
    drawing.putImageData(image, 0, 0);
    const names = svg("svg", { viewBox: `0 0 ${width} ${tall + BOTTOM}`, height: tall + BOTTOM, "aria-hidden": "true", style: { position: "absolute", inset: "0", "pointer-events": "none" } },
      ticks(0, ranks.length - 1, Math.min(ranks.length, 8)).filter(Number.isInteger).map(at => svg("text", { class: "quiet", x: LEFT - 6, y: (at + 0.5) * tall / ranks.length + 4, "text-anchor": "end" }, `${named ? "rank " : ""}${whole(ranks[at])}`)),
      svg("text", { class: "quiet", x: LEFT - 6, y: tall + 16, "text-anchor": "end" }, named ? "step" : "rank, step"),
      stepMarks(steps, width).map(({ at, text }) => svg("text", { class: "quiet", x: LEFT + (at + 0.5) * inner / steps.length, y: tall + 16, "text-anchor": at < 1 ? "start" : (at + 0.5) * inner / steps.length > inner - 24 ? "end" : "middle" }, text)));
    const mark = el("div", { class: "mark", hidden: true });
    target.replaceChildren(canvas, names, mark);
    target.style.paddingBottom = `${BOTTOM}px`;
    const tell = tip(target);
    const show = ({ column, row }) => {
      const value = micros[row][column], { step, attempt } = stepAt(heat, { column, row });
      const which = heat.attempts.length > 1 ? `, attempt ${attempt + 1} of ${heat.attempts.at(-1).number + 1}` : "";
      tell.show(LEFT + column * inner / steps.length, row * tall / ranks.length, `rank ${whole(ranks[row])}, step ${whole(step)}${which}\n${value === null ? "no step" : seconds(value / 1e6)}`);
    };
    const mine = () => ({ column: nearest(at.column, steps.length), row: nearest(at.row, ranks.length) });
    const put = () => {  // the keyboard's cell
      const { column, row } = mine(), wide = inner / steps.length, high = tall / ranks.length;
      mark.hidden = false;
      Object.assign(mark.style, { left: `${LEFT + column * wide - 2}px`, top: `${row * high - 2}px`, width: `${Math.max(wide, 2) + 4}px`, height: `${high + 4}px` });
      show({ column, row });
    };
    enterable(canvas, {
      put, leave: () => { mark.hidden = true; tell.hide(); }, choose: choose && (() => choose(stepAt(heat, mine()))),
      move: (columns, rows) => { const { column, row } = mine(); Object.assign(at, { column: nearest(column + columns, steps.length), row: nearest(row + rows, ranks.length) }); },
    });
    const cell = event => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left) / box.width * steps.length), row = Math.floor((event.clientY - box.top) / box.height * ranks.length);
      return column >= 0 && row >= 0 && column < steps.length && row < ranks.length ? { column, row } : null;
    };
    canvas.onpointermove = event => {
      const at = cell(event);
      if (at) show(at);
      else tell.hide();
    };
    canvas.onpointerleave = () => tell.hide();
    let tapped = "";  // a finger cannot point: its first tap tells, its second opens
    if (choose) canvas.onclick = event => {
      const at = cell(event), name = JSON.stringify(at), first = event.pointerType === "touch" && name !== tapped;
      tapped = name;
      if (at && first) show(at);
      else if (at) choose(stepAt(heat, at));
    };
  });
  return el("div", null, place, el("div", { class: "legend" },
    el("span", null, `${seconds(low / 1e6)} or less`, key, `${seconds(high / 1e6)} or more`),
    heat.ranks_per_row > 1 || heat.steps_per_column > 1 ? el("span", null, `a cell is the longest step of ${whole(heat.ranks_per_row)} ranks and ${whole(heat.steps_per_column)} steps`) : null));
}
