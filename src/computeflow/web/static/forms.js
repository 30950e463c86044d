// Forms whose values are the address's query: a link restores them; what is wrong is said beside its field.

import { getWhenMade } from "./api.js";
import { command, el } from "./dom.js";
import { keepAddress } from "./router.js";

export const DAYS = [1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365];
const DEBOUNCE_MS = 60;

let identity = 0;

/**
 * Fields: { name, label, value, unit, kind: "range" | "steps" | "number" | "text" | "select" | "check", options, stops, hint }.
 * A range moves over `stops` and has its exact number beside it; a first stop of "" is any. Steps are a slider over
 * names, `options(values)`, which may depend on the other fields. `changed(values)` is told of every change.
 */
export function form(fields, changed) {
  const problems = new Map(), readers = new Map(), followers = [];
  let timer = 0;
  const tell = (delay = DEBOUNCE_MS) => {
    clearTimeout(timer);
    for (const follow of followers) follow(values());
    timer = setTimeout(() => changed(values()), delay);
  };
  const values = () => Object.fromEntries([...readers].map(([name, read]) => [name, read()]));
  const rows = fields.map(field => {
    const id = `field-${++identity}`;
    const { node, read, follow } = control(field, id, tell);
    readers.set(field.name, read);
    if (follow) followers.push(follow);
    const problem = el("p", { class: "problem small", role: "alert", id: `${id}-problem` });
    problems.set(field.name, problem);
    return el("div", { class: `field ${field.kind}` },
      el("label", { for: id }, field.label, field.unit ? el("span", { class: "unit" }, field.unit) : null),
      node, field.hint ? el("p", { class: "quiet small hint" }, field.hint) : null, problem);
  });
  for (const follow of followers) follow(values());
  const problemOf = error => problems.get(error.field) ?? problems.get(`${error.field}s`);
  const general = el("p", { class: "problem", role: "alert" });
  const node = el("form", { class: "fields", on: { submit: event => { event.preventDefault(); tell(0); } } }, rows, general);
  return {
    node, values, tell,
    /** Whether a field of this form is to blame. */
    blames: error => Boolean(problemOf(error)),
    /** Say an error beside its field, or below all of them; null takes it away. */
    say(error) {
      for (const each of problems.values()) each.textContent = "";
      general.textContent = "";
      if (!error) return;
      const text = error.message.replaceAll(/--([a-z-]+)/g, "$1"), beside = problemOf(error);
      (beside ?? general).textContent = beside ? text : text.charAt(0).toUpperCase() + text.slice(1);
    },
  };
}

function control(field, id, tell) {
  if (field.kind === "select") {
    const options = field.options.map(option => typeof option === "string" ? { value: option, label: option } : option);
    if (field.value && !options.some(option => option.value === field.value)) options.unshift({ value: field.value, label: field.value });  // an alias, or the server says what is wrong
    const node = el("select", { id, name: field.name, on: { change: () => tell(0) } },
      options.map(({ value, label }) => el("option", { value, selected: value === field.value }, label)));
    return { node, read: () => node.value };
  }
  if (field.kind === "check") {
    const node = el("input", { id, name: field.name, type: "checkbox", checked: field.value === field.on, on: { change: () => tell(0) } });
    return { node, read: () => node.checked ? field.on : "" };
  }
  if (field.kind === "range") return slider(field, id, tell);
  if (field.kind === "steps") return steps(field, id, tell);
  const list = field.options ? el("datalist", { id: `${id}-list` }, field.options.map(option => el("option", { value: option }))) : null;
  const node = el("input", { id, name: field.name, type: "text", inputmode: field.kind === "number" ? "decimal" : null, value: field.value ?? "", list: list ? `${id}-list` : null, autocomplete: "off", spellcheck: "false", placeholder: field.placeholder, on: { input: () => tell(300), change: () => tell(0) } });
  return { node: list ? el("span", { class: "combo" }, node, list) : node, read: () => node.value.trim() };
}

function slider(field, id, tell) {
  const any = field.stops[0] === "", first = any ? 1 : 0;
  const far = (stop, value) => Math.abs(Math.log(stop / value));
  const nearest = value => value > 0 ? field.stops.reduce((best, stop, at) => at > first && far(stop, value) < far(field.stops[best], value) ? at : best, first) : 0;
  const exact = el("input", { id, name: field.name, type: "text", inputmode: "decimal", value: field.value, placeholder: field.placeholder, autocomplete: "off", class: "exact" });
  const range = el("input", { type: "range", min: 0, max: field.stops.length - 1, step: 1, value: nearest(Number(field.value)), "aria-label": `${field.label}, slider` });
  const mark = () => range.setAttribute("aria-valuetext", exact.value || field.placeholder || "");
  mark();
  range.addEventListener("input", () => { exact.value = field.stops[range.value]; mark(); tell(); });
  exact.addEventListener("change", () => { if (!any && !exact.value.trim()) exact.value = field.stops[range.value]; });
  exact.addEventListener("input", () => { if (any || Number(exact.value) > 0) range.value = nearest(Number(exact.value)); mark(); tell(300); });
  return { node: el("span", { class: "slider" }, range, exact), read: () => exact.value.trim() || String(field.stops[range.value]) };
}

function steps(field, id, tell) {
  let names = [field.value];
  const exact = el("select", { id, name: field.name, class: "exact" });
  const stops = el("datalist", { id: `${id}-stops` });  // a mark for each name: they have no scale
  const range = el("input", { type: "range", min: 0, step: 1, list: `${id}-stops`, "aria-label": `${field.label}, slider` });
  const choose = name => { exact.value = name; range.value = names.indexOf(name); range.setAttribute("aria-valuetext", name); };
  exact.addEventListener("change", () => { choose(exact.value); tell(0); });
  range.addEventListener("input", () => { choose(names[range.value]); tell(); });
  return {
    node: el("span", { class: "slider" }, range, exact, stops),
    read: () => exact.value || field.value,
    /** Other names, where another field decides what there is; the same one is kept if it is still there. */
    follow(values) {
      const wanted = exact.value || field.value, found = field.options(values);
      if (exact.value && found.join() === names.join()) return;
      names = found;
      range.max = names.length - 1;
      stops.replaceChildren(...names.map((_, at) => el("option", { value: at })));
      exact.replaceChildren(...names.map(name => el("option", { value: name }, name)));
      choose(names.includes(wanted) ? wanted : names.includes("bf16") ? "bf16" : names[0]);
    },
  };
}

/** The query of those values that differ from the usual ones; empty ones are left out. */
export function queryOf(values, usual) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== "" && value !== null && String(value) !== String(usual[name] ?? "")) query.set(name, value);
  }
  return query.toString();
}

/** Keep the address in step with the form, without another page. */
export function keepQuery(query) {
  keepAddress(location.pathname + (query ? `?${query}` : ""));
}

/** Signals for the questions of a page: a question ends with the next one, and when the reader leaves. */
export function questions(context) {
  let current = new AbortController();
  context.signal.addEventListener("abort", () => current.abort());
  return () => {
    current.abort();
    current = new AbortController();
    if (context.signal.aborted) current.abort();
    return current.signal;
  };
}

/** The content of an address, however long it takes; `progress(working)` is told how far it is. */
export const answer = async (address, signal, progress) => (await getWhenMade(address, signal, progress)).content;

/** The same question on a command line, folded. */
export function sameCommand(text) {
  return text ? el("details", { class: "same" }, el("summary", { class: "small quiet" }, "The same on a command line"), command(text)) : null;
}

/** Above an answer that is not that of what the form says now. */
export function markStale(place) {
  place.querySelector(".stale")?.remove();
  place.prepend(el("p", { class: "caution stale" }, place.children.length ? "A field needs another value. Below is the answer to the last question that could be asked." : "A field needs another value."));
}

/** A refusal that no field is to blame for, and a way to ask again. */
export function refusal(error, again) {
  return el("div", null, el("p", { class: "error", role: "alert" }, error.message),
    el("button", { class: "button", type: "button", on: { click: again } }, "Ask again"));
}
