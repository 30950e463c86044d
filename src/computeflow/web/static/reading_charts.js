// Power, memory, temperature and clocks of a run over time: small drawings with one time axis, read apart from the page.

import { get } from "./api.js";
import { lines } from "./charts.js";
import { el, leftOut, section, unbroken, words } from "./dom.js";
import { number, plural, share, si, whole } from "./format.js";
import { redraw } from "./redraw.js";

const AGAIN_MS = 10_000;  // agents read every few seconds
const HEIGHT = 150;
const FEW = 5;  // points that are no curve yet: a sentence says as much
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const UNITS = { W: [[1, "W"]], "°C": [[1, "°C"]], B: [[1e9, "GB"], [1e6, "MB"]], Hz: [[1e9, "GHz"]] };

function unitOf(name, high) {
  const sizes = UNITS[name] ?? [[1, name]];
  return sizes.find(([size]) => high >= size) ?? sizes.at(-1);
}

function clock(unix, step) {
  const kind = step < 60 ? { timeStyle: "medium" } : step < 86400 ? { timeStyle: "short" } : { day: "numeric", month: "short" };
  return new Date(1000 * unix).toLocaleString("en-GB", kind);
}

/** Round times of the reader's clock, about one for each 90 pixels, never closer than the points. */
function timeMarks({ start, slot_seconds: slot }, count, width) {
  const span = slot * (count - 1), wanted = Math.max(2, Math.floor(width / 90));
  if (!span) return [{ at: 0, text: clock(start, 1) }];
  const step = CLOCK_STEPS.find(each => each >= slot && span / each <= wanted) ?? 86400 * Math.ceil(span / 86400 / wanted);
  const offset = 60 * new Date(1000 * start).getTimezoneOffset(), marks = [];
  for (let at = Math.ceil((start - offset) / step) * step + offset; at <= start + span; at += step) marks.push({ at: (at - start) / slot, text: clock(at, step) });
  return marks;
}

const known = values => values.filter(value => value !== null);

function sentence(meter) {
  const values = known(meter.mean), largest = Math.max(...known(meter.largest));
  const [size, name] = unitOf(meter.unit, largest), write = value => `${number(value / size)} ${name}`;
  const mean = write(values.reduce((sum, value) => sum + value, 0) / values.length);
  const most = write(largest) === mean ? "" : `, ${write(largest)} at most`;
  return el("p", null, `${meter.title}: ${mean}${most}${meter.limit === null ? "" : `; ${meter.limit_title} ${write(meter.limit)}`}.`);
}

function drawing(readings, meter, at) {
  const high = 1.05 * Math.max(...known(meter.largest), meter.limit ?? 0) || 1, unit = unitOf(meter.unit, high);
  const write = value => value === null ? "not read" : `${number(value / unit[0], 4)} ${unit[1]}`;
  return el("figure", null, el("figcaption", null, meter.title, el("span", { class: "unit" }, `, ${unit[1]}`),
    meter.limit === null ? null : el("span", { class: "quiet small" }, unbroken(` · dashed: ${meter.limit_title}, ${write(meter.limit)}`))),
  lines([{ values: meter.mean }, { values: meter.largest, kind: "second" }], {
    key: meter.title, label: `${meter.title} over time: mean and largest`, unit, high, limit: meter.limit, height: HEIGHT, at,
    marks: width => timeMarks(readings, meter.mean.length, width),
    tell: index => `${clock(readings.start + index * readings.slot_seconds, 1)}\nmean ${write(meter.mean[index])}\nlargest ${write(meter.largest[index])}`,
  }));
}

function energyText({ energy, of, count }, run) {
  if (!energy) return null;
  const spent = run.updated - run.started, watts = energy.joules / (energy.covered * spent * count);
  const size = `${si(energy.joules, "J")} (${number(energy.joules / 3.6e6)} kWh)`;
  const others = count === run.gpus ? "" : ` These are all ${plural(count, of)} of its nodes; the run has ${plural(run.gpus, "rank")}.`;
  return `Energy${run.state === "running" ? " so far" : ""}: ${size}, ${number(watts)} W a GPU on average; power was read in ${share(energy.covered)} of the time.${others}`;
}

function filled({ readings, readings_missing: missing, left_out: lost }, run, at, said) {
  const shown = readings?.meters ?? [], energy = readings ? energyText(readings, run) : null;
  const unsaid = leftOut(lost?.filter(text => !said.includes(text)));
  const note = missing ? el("p", { class: "quiet small" }, words(missing)) : null;
  if (!shown.length) return [note, unsaid].filter(Boolean);
  const many = readings.count > 1 ? `mean over ${whole(readings.count)} ${readings.of}s` : "mean";
  const [curves, points] = [shown.filter(meter => known(meter.mean).length >= FEW), shown.filter(meter => known(meter.mean).length < FEW)];
  return [energy ? el("p", null, energy) : null, ...points.map(sentence),
    curves.length ? el("div", { class: "multiples" }, curves.map(meter => drawing(readings, meter, at))) : null,
    !curves.length ? null : el("div", { class: "legend" }, el("span", null, el("i"), many), el("span", null, el("i", { class: "second" }), readings.count > 1 ? `largest of one ${readings.of}` : "largest"), el("span", null, `one point every ${readings.slot_seconds === 1 ? "second" : plural(readings.slot_seconds, "second")}`)),
    note, unsaid].filter(Boolean);
}

/** A section that fills itself, and again when the page is drawn anew some seconds later; `said` is what the page
 * says of what could not be read. */
export function readingCharts(run, title, state, said) {
  const place = el("div", { class: "readings" });
  state.readingsPlace = place;
  state.moment ??= { column: 0 };
  const show = () => redraw(state.readingsPlace, state.readings ? filled(state.readings, run, state.moment, said) : [el("p", { class: "quiet", "aria-busy": "true" }, "Reading the meters …")]);
  show();
  if (!state.readingsAt || performance.now() - state.readingsAt > AGAIN_MS) {
    state.readingsAt = performance.now();
    get(`/readings/${encodeURIComponent(run.id)}`).then(({ content }) => { state.readings = content; show(); }, error => {
      state.readings ??= { readings: null, readings_missing: error.message };
      show();
    });
  }
  return section(title, place);
}
