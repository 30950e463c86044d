// Decide: rent or build, where, for how much; or every offer compared.

import { el, heading, lead, stats, workingLine } from "../dom.js";
import { answer, DAYS, form, keepQuery, markStale, queryOf, questions, refusal, sameCommand } from "../forms.js";
import { number, palmNote, plural, share, usd, whole } from "../format.js";
import { partNodes } from "../parts.js";

export const live = false;
export const address = () => "/choices";

const USUAL = { model: "llama-3.1-70b", tokens: "1T", deadline: 60, precision: "bf16", show: "decision" };

function fieldsOf(choices, asked) {
  const value = name => asked.get(name) ?? USUAL[name] ?? "";
  return [
    { name: "model", label: "Model", kind: "text", value: value("model"), options: choices.models.map(model => model.name) },
    { name: "tokens", label: "Tokens to train on", unit: "such as 2T", kind: "text", value: value("tokens") },
    { name: "deadline", label: "Deadline", unit: "days", kind: "range", value: value("deadline"), stops: DAYS },
    { name: "budget", label: "Budget", unit: "$, such as 2M", kind: "text", value: value("budget") },
    { name: "devices", label: "Devices", unit: "names, commas", kind: "text", value: value("devices"), placeholder: "all" },
    { name: "providers", label: "Providers", unit: "names, commas", kind: "text", value: value("providers"), placeholder: "all" },
    { name: "countries", label: "Countries", unit: "such as US, DE", kind: "text", value: value("countries"), placeholder: "all" },
    { name: "precision", label: "Precision", kind: "steps", value: value("precision"), options: () => choices.precisions },
    { name: "unproven", label: "Also devices without a published run", kind: "check", on: "true", value: value("unproven") },
  ];
}

const DAY = 86400;

function numbers(content) {
  const { result } = content, best = result.options?.[0], { build } = result;
  const days = value => (value / DAY).toFixed(1), months = result.months_until_owning_pays?.[1];
  const cost = { label: "Cost", value: usd(result.usd), note: result.usd_range ? `${usd(result.usd_range[0])} to ${usd(result.usd_range[1])}` : null };
  if (result.way === "build") return stats([
    { label: "Build", value: build.accelerator, note: "bought and sold" },
    { label: "Devices", value: whole(build.gpus) },
    { label: "Time, P90", value: days(build.p90_seconds), unit: "days", note: `${days(build.ready_seconds)} of them until it runs` },
    cost, { label: "Cash at the start", value: usd(build.cash_usd) },
  ]);
  if (!best) return null;
  const spares = best.allocated_gpus - best.gpus;
  return stats([
    { label: "Rent", value: best.accelerator, note: best.offer },
    { label: "Devices", value: whole(best.gpus), note: spares ? `and ${plural(spares, "spare")}` : "no spares" },
    { label: "Time", value: days(best.p50_seconds), unit: "days", note: `${best.seconds_range.map(days).join(" to ")}; by failures alone P90 ${days(best.p90_seconds)}` },
    cost,
    { label: "MFU", value: share(best.mfu), note: [palmNote(best.mfu_palm), `goodput ${share(best.goodput.p50)}`].filter(Boolean).join("; ") },
    months ? { label: "Owning pays after", value: number(months), unit: "months" } : null,
  ]);
}

export function render(choices, context) {
  const place = el("div", { class: "answered", "aria-busy": "true" });
  const begin = questions(context);
  let show = context.query.get("show") ?? USUAL.show;
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "What is shown" }, [["decision", "Decision"], ["offers", "Offers"]].map(([value, title]) =>
    el("button", { class: "button", type: "button", "aria-pressed": String(value === show), on: { click: event => {
      show = value;
      for (const each of tabs.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      ask(asking.values());
    } } }, title)));
  const asking = form(fieldsOf(choices, context.query), values => ask(values));

  async function ask(values) {
    const signal = begin(), query = queryOf({ ...values, show }, USUAL);
    if (signal.aborted) return;
    keepQuery(query);
    asking.say(null);
    place.setAttribute("aria-busy", "true");
    try {
      const content = await answer(`/decide?${query}`, signal, working => place.replaceChildren(workingLine(working)));
      place.replaceChildren(...[lead(content.headline), numbers(content), ...partNodes(content.parts), sameCommand(content.command)].filter(Boolean));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (asking.blames(error)) {
        asking.say(error);
        markStale(place);
      } else place.replaceChildren(refusal(error, () => asking.tell(0)));
      if (error.status === undefined) throw error;
    }
    place.removeAttribute("aria-busy");
  }

  asking.tell(0);
  return [heading("Decide", tabs), el("div", { class: "asking" }, asking.node, place)];
}
