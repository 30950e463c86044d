// Findings, the most expensive first; what can be done, what was decided, and what that gained.

import { post } from "../api.js";
import { el, heading, lead, quoted, say, section, stats, table } from "../dom.js";
import { findingCard } from "../finding_card.js";
import { plural, seconds, usd, when } from "../format.js";

const VERBS = { proposed: ["approve", "dismiss"], approved: ["dismiss"], done: ["undo"] };
const DOES = { approve: "Approve", dismiss: "Dismiss", undo: "Undo" };

function buttons(action, context) {
  const verbs = VERBS[action.state] ?? [];
  if (!verbs.length) return null;
  if (context.session.role !== "operator") {
    return context.session.operators
      ? el("button", { class: "button", type: "button", "data-key": `sign in ${action.id}`, on: { click: context.signIn } }, "Sign in to act")
      : el("code", { class: "quiet" }, `computeflow actions ${verbs[0]} ${action.id} --store ${quoted(context.session.source)}`);
  }
  return el("div", { class: "row" }, verbs.map(verb => el("button", {
    class: `button ${verb === "approve" ? "main" : ""}`, type: "button", "data-key": `${verb} ${action.id}`,
    on: { click: event => act(event.currentTarget, action, verb, context) },
  }, DOES[verb])));
}

async function act(button, action, verb, context) {
  button.disabled = true;
  try {
    say((await post(`/actions/${action.id}/${verb}`)).headline);
    context.refresh();
  } catch (error) {
    say(error.message);
    button.disabled = false;
  }
}

function actionLine(action, context) {
  return el("div", { class: "action" },
    el("p", null, el("span", { class: "tag" }, action.state), ` ${action.title || action.kind}`),
    action.reason ? el("p", { class: "quiet small" }, action.reason) : null,
    action.approved_by ? el("p", { class: "quiet small" }, `approved by ${action.approved_by}, ${when(action.approved_at)}`) : null,
    action.note ? el("p", { class: "quiet small" }, action.note) : null,
    buttons(action, context));
}

function pastTable(actions, context) {
  return table([
    { title: "id", number: true, wide: true, cell: action => action.id },
    { title: "decided", wide: true, cell: action => when(action.at) },
    { title: "action", cell: action => action.title || action.kind },
    { title: "state", cell: action => el("span", { class: "tag" }, action.state) },
    { title: "by", wide: true, cell: action => action.approved_by || null },
    { title: "predicted gain", number: true, wide: true, cell: action => seconds(action.predicted_gain_seconds) },
    { title: "measured gain", number: true, cell: action => seconds(action.outcome?.measured_gain_seconds ?? null) },
    { title: "", cell: action => buttons(action, context) ?? "" },
  ], actions, { label: "Actions" });
}

function runPicker(content, context) {
  const asked = context.query.get("run") ?? "";
  const select = el("select", { "aria-label": "Run", "data-key": "run", on: { change: () => context.navigate(select.value ? `/findings?${new URLSearchParams({ run: select.value })}` : "/findings") } },
    [["", "All runs"], ...Object.entries(content.names)].map(([id, name]) => el("option", { value: id, selected: id === asked }, name)));
  return select;
}

export function render(content, context) {
  const { findings, closed, actions, skipped, names } = content;
  const several = Object.keys(names).length > 1;
  const total = findings.reduce((sum, finding) => sum + (finding.usd_per_hour ?? 0), 0);
  const priced = findings.some(finding => finding.usd_per_hour !== null);
  const waiting = actions.filter(action => action.state === "proposed");
  const cards = findings.map(finding => findingCard(finding, {
    run: several ? names[finding.run] ?? finding.run : "",
    extra: actions.filter(action => action.findings.includes(finding.key)).map(action => actionLine(action, context)),
  }));
  return [
    heading("Findings", runPicker(content, context)),
    lead(content.headline),
    stats([
      { label: "Open findings", value: findings.length },
      { label: "They cost", value: priced ? usd(total) : null, unit: "/ h", note: priced ? null : "needs --price" },
      context.session.kind === "store" ? { label: "Waiting for approval", value: waiting.length } : null,
      context.session.kind === "store" ? { label: "Closed lately", value: closed.length } : null,
    ]),
    section(null, cards.length ? cards : el("p", { class: "quiet" }, "Nothing was found: no rule sees a remedy worth 2 % of a step.")),
    actions.length ? section("Actions, the newest first", pastTable(actions, context)) : null,
    closed.length ? section("Closed", table([
      { title: "rule", cell: finding => finding.rule },
      { title: "finding", cell: finding => finding.title },
      { title: "run", wide: true, cell: finding => names[finding.run] ?? finding.run },
      { title: "closed", wide: true, cell: finding => when(finding.closed) },
      { title: "why", wide: true, cell: finding => finding.why_closed },
      { title: "cost", number: true, cell: finding => usd(finding.usd) },
    ], closed, { label: "Closed findings" })) : null,
    skipped.length ? el("details", null, el("summary", null, `${plural(skipped.length, "rule")} skipped for a missing signal`),
      el("ul", null, skipped.map(rule => el("li", null, `${rule.rule}: needs ${rule.missing}`, several ? el("span", { class: "quiet" }, ` ${names[rule.run] ?? rule.run}`) : null)))) : null,
  ].filter(Boolean);
}
