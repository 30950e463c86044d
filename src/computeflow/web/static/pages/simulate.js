// Simulate: a whole run with failures: when it ends, how often to save, how many spares.

import { el, heading, lead, stats, workingLine } from "../dom.js";
import { answer, form, keepQuery, markStale, queryOf, questions, refusal, sameCommand } from "../forms.js";
import { number, seconds, share, usd, whole } from "../format.js";
import { partNodes } from "../parts.js";
import { fieldsOf as jobFields } from "./plan.js";

export const live = false;
export const address = () => "/choices";

const USUAL = { model: "llama-3.1-70b", device: "h100-sxm", gpus: 512, sequence: 8192, batch: 1024, precision: "bf16", tokens: "1T", failures: "llama-3", simulations: 200 };

const EACH_INPUT = "Vary each input";

function fieldsOf(choices, asked) {
  const value = name => asked.get(name) ?? USUAL[name] ?? "";
  const job = jobFields(choices, asked).filter(field => field.name !== "deadline")
    .map(field => field.name === "tokens" ? { ...field, value: value("tokens") } : field);
  return [...job,
    { name: "failures", label: "Failure rates", unit: "measured", kind: "select", value: value("failures"), options: choices.failures },
    { name: "interval", label: "Checkpoint every", unit: "minutes", kind: "number", value: value("interval"), placeholder: "the best" },
    { name: "spares", label: "Spare nodes", kind: "number", value: value("spares"), placeholder: "as many as needed" },
    { name: "sensitivity", label: EACH_INPUT, kind: "check", on: "yes", value: value("sensitivity") },
  ];
}

const range = ([low, high], write) => `${write(low)} to ${write(high)}`;

function numbers({ result, seconds_with_step_range: steps, interval_range_seconds: intervals }) {
  const spread = (part, write) => `${write(part.p10)} to ${write(part.p90)}`, spares = result.allocated_gpus - result.gpus;
  return stats([
    { label: "Finished after", value: seconds(result.seconds.p50), note: steps ? `${range(steps, seconds)} over the step's predicted range; failures alone ${spread(result.seconds, seconds)}` : `P10 to P90: ${spread(result.seconds, seconds)}` },
    { label: "Goodput", value: share(result.goodput.p50), note: `${spread(result.goodput, share)}${spares ? `; of all ${whole(result.allocated_gpus)} devices, spares included` : ""}` },
    { label: "Interruptions", value: number(result.interruptions.mean), note: result.mtbi_seconds === null ? "on average" : `on average; one every ${seconds(result.mtbi_seconds)}` },
    { label: "Checkpoint every", value: seconds(result.interval_seconds), note: intervals ? `${range(intervals, seconds)} are within 0.1 % of the best` : "of work" },
    { label: "Devices", value: whole(result.gpus), note: spares ? `${whole(result.allocated_gpus)} with spares` : "no spares" },
    result.usd === null ? null : { label: "Cost", value: usd(result.usd.p50), note: spread(result.usd, usd) },
  ]);
}

export function render(choices, context) {
  const place = el("div", { class: "answered", "aria-busy": "true" });
  const begin = questions(context);
  const asking = form(fieldsOf(choices, context.query), async values => {
    const signal = begin(), query = queryOf(values, USUAL);
    if (signal.aborted) return;
    keepQuery(query);
    asking.say(null);
    place.setAttribute("aria-busy", "true");
    try {
      const content = await answer(`/simulate?${query}`, signal, working => { if (!place.children.length) place.replaceChildren(workingLine(working)); });
      const [summary, ledger, ...rest] = content.parts;
      const timeline = rest.filter(part => part.title.startsWith("Time lost over")), curves = rest.filter(part => !timeline.includes(part));
      place.replaceChildren(lead(content.headline, { sensitivity: EACH_INPUT }), numbers(content),
        el("p", { class: "quiet small" }, `Layout: ${content.layout}.`),
        ...partNodes([...timeline, ...curves, ledger, summary]), sameCommand(content.command));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (asking.blames(error)) {
        asking.say(error);
        markStale(place);
      } else place.replaceChildren(refusal(error, () => asking.tell(0)));
      if (error.status === undefined) throw error;
    }
    place.removeAttribute("aria-busy");
  });
  asking.tell(0);
  return [heading("Simulate"), el("div", { class: "asking" }, asking.node, place)];
}
