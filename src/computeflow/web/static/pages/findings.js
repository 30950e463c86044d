// Findings, the most expensive first; what can be done, what was decided, and what that gained.

import { post } from "../api.js";
import { el, heading, lead, quoted, say, section, stats, table } from "../dom.js";
import { findingCard } from "../finding_card.js";
import { CENT, plural, seconds, usd, when } from "../format.js";

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
    await context.refresh();
    document.querySelector(`[data-key$=" ${action.id}"]`)?.focus();  // what can be done next takes its place
  } catch (error) {
    say(error.message);
    button.disabled = false;
  }
}

/** What the controller does once it is approved, step by step as the journal has them. */
function stepsOf(action) {
  return action.steps.map(({ step }) => [step.do, step.node ?? (step.job ? `job ${step.job}` : step.folder), step.exclude?.length ? `without ${step.exclude.join(", ")}` : null].filter(Boolean).join(" ")).join(", then ");
}

function actionLine(action, context) {
  const does = stepsOf(action), gain = action.predicted_gain_seconds;
  return el("div", { class: "action" },
    el("p", null, el("span", { class: "tag" }, action.state), ` ${action.title || action.kind}`),
    action.state === "proposed" ? el("p", null, `If approved, the controller of this store will ${does || "carry it out"}.`) : null,
    gain === null ? null : el("p", null, `Predicted: the job ends ${seconds(gain)} earlier, net of the move itself.`),
    action.reason ? el("p", { class: "quiet small" }, action.reason) : null,
    action.approved_by ? el("p", { class: "quiet small" }, `approved by ${action.approved_by}, ${when(action.approved_at)}`) : null,
    action.note ? el("p", { class: "quiet small" }, action.note) : null,
    buttons(action, context));
}

function pastTable(actions, names, context) {
  return table([
    { title: "id", number: true, wide: true, cell: action => action.id },
    { title: "time", wide: true, cell: action => when(action.at) },
    { title: "run", wide: true, cell: action => names[action.run] ?? action.run },
    { title: "action", cell: action => [el("span", { class: "tag" }, action.state), ` ${action.title || action.kind}`] },
    { title: "approved by", wide: true, cell: action => action.approved_by || null },
    { title: "predicted gain", unit: "of the job's time", number: true, wide: true, cell: action => seconds(action.predicted_gain_seconds) },
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

/** What findings cost an hour now; of silent runs that is not known, only what it was. */
function hourlyCost(findings, silent) {
  const cost = those => those.reduce((total, finding) => finding.usd_per_hour === null ? total : (total ?? 0) + finding.usd_per_hour, null);
  const now = cost(findings.filter(finding => !(finding.run in silent))), before = cost(findings.filter(finding => finding.run in silent));
  if (before !== null && now === null) return { label: "Cost of findings", value: usd(before), unit: "/ h", note: "when last heard from" };
  return { label: "Cost of findings", value: now === null ? null : usd(now), unit: "/ h", note: before !== null ? `and ${usd(before)} / h when last heard from` : now === null && findings.length ? "needs --price" : null };
}

/** What findings of recordings cost in all: runs that ran one after the other have no cost an hour together. */
function recordedCost({ findings, usd: lost, runs_usd: whole, result }) {
  const label = "Cost of findings", inAll = lost >= CENT ? `, ${usd(lost)}${whole === null ? "" : ` of ${usd(whole)}`} in all` : "";
  if (lost === null) return { label, value: null, note: findings.length ? "needs --price" : null };
  const hourly = hourlyCost(findings, {});
  if (result === null || hourly.value === null) return { label, value: usd(lost), note: whole === null ? "in all" : `of ${usd(whole)} in all` };
  return { ...hourly, note: `while it ran${inAll}` };
}

export function render(content, context) {
  const { findings, closed, actions, skipped, names, silent } = content;
  const several = Object.keys(names).length > 1, live = context.session.kind === "store";
  const waiting = actions.filter(action => action.state === "proposed");
  const cards = findings.map(finding => findingCard(finding, {
    run: finding.run ? names[finding.run] ?? finding.run : "", silent: finding.run in silent,
    extra: actions.filter(action => action.findings.includes(finding.key)).map(action => actionLine(action, context)),
  }));
  return [
    heading("Findings", runPicker(content, context)),
    lead(content.headline),
    stats([
      { label: live ? "Open findings" : "Findings", value: findings.length },
      live ? hourlyCost(findings, silent) : recordedCost(content),
      live ? { label: "Waiting for approval", value: waiting.length } : null,
      live ? { label: "Recently closed", value: closed.length } : null,
    ]),
    section(null, cards.length ? cards : el("p", { class: "quiet" }, `${live ? "No finding is open" : "No findings"}: no rule sees a remedy worth 2 % of a step.`)),
    actions.length ? section("Actions, newest first", pastTable(actions, names, context)) : null,
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
