// Plan: sliders for the job and the cluster; the best layout, its ledger and the front follow at once.

import { el, heading, lead, section, stats, table, words, workingLine } from "../dom.js";
import { answer, DAYS, form, keepQuery, markStale, queryOf, questions, refusal, sameCommand } from "../forms.js";
import { number, palmNote, seconds, secondsCell, share, si, usd, whole } from "../format.js";
import { partFigure, partNodes } from "../parts.js";
import { redraw } from "../redraw.js";

export const live = false;
export const address = () => "/choices";

const USUAL = { model: "llama-3.1-70b", device: "h100-sxm", gpus: 512, sequence: 8192, batch: 1024, precision: "bf16" };
const OPTIONS = { on: "Device type", gpus: "Devices", "seq-len": "Sequence", "global-batch": "Global batch", precision: "Precision", tokens: "Tokens to train on", deadline: "Deadline", price: "Price" };
const powers = (first, last) => Array.from({ length: Math.log2(last / first) + 1 }, (_, at) => first * 2 ** at);

export function fieldsOf(choices, asked) {
  const value = name => asked.get(name) ?? USUAL[name] ?? "";
  const several = choices.devices.map(device => ({ value: device.name, label: device.announced ? `${device.name} (announced)` : device.name }));
  return [
    { name: "model", label: "Model", kind: "text", value: value("model"), options: choices.models.map(model => model.name) },
    { name: "device", label: "Device type", kind: "select", value: value("device"), options: several },
    { name: "gpus", label: "Devices", kind: "range", value: value("gpus"), stops: powers(8, 16384) },
    { name: "sequence", label: "Sequence", unit: "tokens", kind: "range", value: value("sequence"), stops: powers(1024, 1048576) },
    { name: "batch", label: "Global batch", unit: "sequences", kind: "range", value: value("batch"), stops: powers(8, 16384) },
    { name: "precision", label: "Precision", kind: "steps", value: value("precision"), options: values => choices.devices.find(device => device.name === values.device)?.precisions ?? choices.precisions },
    { name: "tokens", label: "Tokens to train on", unit: "such as 2T", kind: "text", value: value("tokens") },
    { name: "deadline", label: "Deadline", unit: "days", kind: "range", value: value("deadline"), stops: ["", ...DAYS], placeholder: "any" },
    { name: "price", label: "Price", unit: "$ per device-h", kind: "number", value: value("price") },
  ];
}

function range(pair, write) {
  return `${write(pair[0])} to ${write(pair[1])}`;
}

function numbers(content) {
  const best = content.result.plans[0], spread = best.step_seconds_range;
  const scaled = value => best.days === null ? null : value / best.step_seconds * best.days;
  return stats([
    { label: "Step", value: seconds(best.step_seconds), note: `${range(spread, seconds)} (80 % of runs)` },
    { label: "MFU", value: share(best.mfu), note: palmNote(best.mfu_palm, best.peak_precision) },
    { label: "Throughput", value: whole(best.tokens_per_second_per_gpu), unit: "tokens/s/device" },
    { label: "Memory", value: si(best.memory.bytes, "B"), note: best.memory.fits ? "of a device: fits" : "does not fit" },
    best.days === null ? null : { label: "Training", value: number(best.days), unit: "days", note: range(spread.map(scaled), number) },
    best.usd === null ? null : { label: "Cost", value: usd(best.usd), note: best.megawatt_hours === null ? null : `${number(best.megawatt_hours)} MWh` },
  ]);
}

function evidence(best) {
  const { evidence: seen } = best;
  const counts = [[seen.same_device_and_stack, "on this device with this stack"], [seen.same_device, "on this device"], [seen.same_stack, "with this stack"]];
  return section("What the prediction rests on",
    el("p", null, counts.map(([count, what]) => `${whole(count)} measured runs ${what}`).join(", "), "."),
    best.warnings.length ? el("ul", { class: "error" }, best.warnings.map(text => el("li", null, words(text, OPTIONS)))) : null,
    best.unmeasured.length ? el("p", { class: "quiet" }, `No published run tested: ${best.unmeasured.join(", ")}.`) : null,
    best.assumed.length ? el("details", null, el("summary", { class: "small quiet" }, `${best.assumed.length} inputs were assumed`), el("ul", { class: "small" }, best.assumed.map(text => el("li", null, words(text, OPTIONS))))) : null);
}

function plansTable(content) {
  const first = content.result.plans[0].step_seconds;
  return section("The plans, best first", table([
    { title: "layout", cell: plan => plan.text },
    { title: "step", number: true, cell: plan => secondsCell(plan.step_seconds) },
    { title: "80 % of runs", number: true, wide: true, cell: plan => range(plan.step_seconds_range, secondsCell) },
    { title: "if overlap fails", number: true, wide: true, cell: plan => secondsCell(plan.pessimistic_seconds) },
    { title: "MFU", number: true, cell: plan => share(plan.mfu) },
    { title: "memory", number: true, wide: true, cell: plan => si(plan.memory.bytes, "B") },
    { title: "slower", unit: "%", number: true, cell: plan => (100 * (plan.step_seconds / first - 1)).toFixed(1) },
  ], content.result.plans.map((plan, at) => ({ ...plan, text: content.layouts[at] })), { label: "Plans" }));
}

function searched(content) {
  const { evaluated, enumerated } = content.result;
  const how = content.search === "quick" ? "layouts that published runs tested; all others are being searched" : `of ${number(enumerated / 1e6)} million layouts; the others are impossible, do not fit in memory, or recompute or offload more than needed`;
  return el("p", { class: "quiet small", "data-search": content.search }, `${whole(evaluated)} predicted ${content.search === "quick" ? "of the " : ""}${how}.`);
}

function filesList(content, query) {
  const wrong = content.exports.filter(each => each.refused);
  return section("Files to launch it",
    el("ul", { class: "files" }, content.exports.filter(each => !each.refused).flatMap(each => Object.keys(each.files).map(file =>
      el("li", null, el("a", { href: `/plan/file?${new URLSearchParams({ framework: each.name, file })}&${query}`, download: file }, file), el("span", { class: "quiet small" }, ` ${each.name}`))))),
    wrong.length ? el("details", null, el("summary", { class: "small quiet" }, `${wrong.length} formats cannot take this plan`),
      el("ul", { class: "small" }, wrong.map(each => el("li", null, `${each.name}: ${each.refused}`)))) : null);
}

export function render(choices, context) {
  const place = el("div", { class: "answered", "aria-busy": "true" });
  const front = el("div"), files = el("div");
  const begin = questions(context);
  const asking = form(fieldsOf(choices, context.query), async values => {
    const signal = begin(), query = queryOf(values, USUAL);
    if (signal.aborted) return;
    keepQuery(query);
    place.setAttribute("aria-busy", "true");
    try {
      await follow(query, signal);
      asking.say(null);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (values.deadline && !values.tokens && error.field === "deadline") error.message = "A deadline needs the tokens to train on.";
      asking.say(error);
      if (asking.blames(error)) {
        place.querySelector(".working")?.remove();
        markStale(place);
      } else if (error.status === 400) place.replaceChildren(el("p", { class: "lead" }, "There is no plan for this job within its limits."), front);
      else place.replaceChildren(refusal(error, () => asking.tell(0)));
      place.removeAttribute("aria-busy");
      if (error.status === undefined) throw error;
    }
  });

  function show(content) {
    const [ledger, memory, comparison] = content.parts;
    redraw(place, [
      lead(content.headline, OPTIONS), numbers(content), searched(content),
      partFigure(ledger), front, plansTable(content), el("div", { class: "pair" }, partFigure(memory), evidence(content.result.plans[0])),
      partFigure(comparison), files, sameCommand(content.command)].filter(Boolean));
    place.removeAttribute("aria-busy");
  }

  /** Beside the plan, which stands whether this fails or not. */
  async function beside(part, address, signal, draw) {
    try {
      part.replaceChildren(...draw(await answer(address, signal)));
    } catch (error) {
      if (error.name === "AbortError") return;
      part.replaceChildren(note(error.message));
      if (error.status === undefined) throw error;
    }
  }

  const note = text => el("p", { class: "quiet small" }, words(text, OPTIONS));
  const around = (query, signal) => beside(front, `/plan/front?${query}`, signal, found => found.parts.length ? partNodes(found.parts) : [note(found.note)]);

  async function follow(query, signal) {
    const quick = await answer(`/plan?${query}`, signal).catch(error => {
      if (error.status === 400 && !error.field) return null;  // the whole search may find a plan where the quick one does not
      throw error;
    });
    files.replaceChildren();
    if (quick) {
      asking.say(null);
      show(quick);
    } else {
      place.replaceChildren(workingLine({ progress: "No layout that published runs tested will do: searching all" }));
      front.replaceChildren();
    }
    around(query, signal);  // without a plan, what fewer and more devices can do
    const full = `${query ? `${query}&` : ""}search=full`;
    show(await answer(`/plan?${full}`, signal));
    beside(files, `/plan/files?${full}`, signal, content => [filesList(content, full)]);
  }

  asking.tell(0);
  return [heading("Plan"), el("div", { class: "asking" }, asking.node, place)];
}
