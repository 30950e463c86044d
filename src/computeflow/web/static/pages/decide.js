// Decide: rent or build, where, for how much; or every offer compared.

import { el, heading, lead, stats } from "../dom.js";
import { answer, DAYS, form, keepAddress, queryOf, questions, refusal, sameCommand, workingLine } from "../forms.js";
import { number, seconds, share, usd, whole } from "../format.js";
import { partNodes } from "../parts.js";

export const live = false;
export const address = () => "/choices";

const USUAL = { model: "llama-3.1-70b", tokens: "1T", deadline: 60, precision: "bf16", show: "decision" };

function fieldsOf(choices, asked) {
  const value = name => asked.get(name) ?? USUAL[name] ?? "";
  return [
    { name: "model", label: "Model", kind: "text", value: value("model"), options: choices.models.map(model => model.name) },
    { name: "tokens", label: "Tokens to train on", unit: "2T", kind: "text", value: value("tokens") },
    { name: "deadline", label: "Deadline", unit: "days", kind: "range", value: value("deadline"), stops: DAYS },
    { name: "budget", label: "Budget", unit: "$, such as 2M", kind: "text", value: value("budget") },
    { name: "devices", label: "Devices", unit: "names, commas", kind: "text", value: value("devices"), placeholder: "all" },
    { name: "providers", label: "Providers", unit: "names, commas", kind: "text", value: value("providers"), placeholder: "all" },
    { name: "countries", label: "Countries", unit: "such as US, DE", kind: "text", value: value("countries"), placeholder: "all" },
    { name: "precision", label: "Precision", kind: "steps", value: value("precision"), options: () => choices.precisions },
    { name: "unproven", label: "Also devices without a published run", kind: "check", on: "true", value: value("unproven") },
  ];
}

function numbers(content) {
  const { result } = content, best = result.options?.[0];
  if (!best) return null;
  return stats([
    { label: result.way === "build" ? "Build" : "Rent", value: best.accelerator, note: best.offer },
    { label: "GPUs", value: whole(best.gpus), note: `${whole(best.allocated_gpus)} with spares` },
    { label: "Time", value: seconds(best.p50_seconds), note: `P90 ${seconds(best.p90_seconds)}` },
    { label: "Cost", value: usd(result.usd), note: result.usd_range ? `${usd(result.usd_range[0])} to ${usd(result.usd_range[1])}` : null },
    { label: "MFU", value: share(best.mfu), note: `goodput ${share(best.goodput.p50)}` },
    result.months_until_owning_pays === null || result.months_until_owning_pays === undefined ? null : { label: "Owning pays after", value: number(result.months_until_owning_pays), unit: "months" },
  ]);
}

/** A figure without the words that stand above it already. */
function said(part, content) {
  return part.summary === content.headline ? { ...part, summary: "" } : part;
}

export function render(choices, context) {
  const place = el("div", { class: "answered", "aria-busy": "true" });
  const begin = questions(context);
  let show = context.query.get("show") ?? USUAL.show;
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "What is shown" }, [["decision", "Decision"], ["offers", "Every offer"]].map(([value, title]) =>
    el("button", { class: "button", type: "button", "aria-pressed": String(value === show), on: { click: event => {
      show = value;
      for (const each of tabs.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      ask(asking.values());
    } } }, title)));
  const asking = form(fieldsOf(choices, context.query), values => ask(values));

  async function ask(values) {
    const signal = begin(), query = queryOf({ ...values, show }, USUAL);
    if (signal.aborted) return;
    keepAddress(query);
    asking.say(null);
    place.setAttribute("aria-busy", "true");
    try {
      const content = await answer(`/decide?${query}`, signal, working => place.replaceChildren(workingLine(working)));
      place.replaceChildren(...[lead(content.headline), numbers(content), ...partNodes(content.parts.map(part => said(part, content))), sameCommand(content.command)].filter(Boolean));
    } catch (error) {
      if (error.name === "AbortError") return;
      place.replaceChildren();
      if (asking.blames(error)) asking.say(error);
      else place.replaceChildren(refusal(error, () => asking.tell(0)));
      if (error.status === undefined) throw error;
    }
    place.removeAttribute("aria-busy");
  }

  asking.tell(0);
  return [heading("Decide", tabs), el("div", { class: "asking" }, asking.node, place)];
}
