// One finding: what it costs, what shows it, what to do about it.

import { command, el, swatch, words } from "./dom.js";
import { CENT, clock, number, seconds, share, usd } from "./format.js";

export const OWNERS = {
  "compute.model": "useful", "compute.clock": "site", straggler: "site", restart: "site", lost: "site", idle: "site",
  "compute.kernel": "tuning", "compute.recompute": "tuning", optimizer: "tuning", copy: "tuning", host: "tuning",
  compute: "mixed", unexplained: "unknown",
};

export function ownerOf(account) {
  return OWNERS[account] ?? "design";
}

export function ranksText(ranks) {
  if (!ranks?.length) return "all ranks";
  const shown = ranks.slice(0, 8).join(", ");
  return `${ranks.length === 1 ? "rank" : "ranks"} ${shown}${ranks.length > 8 ? ` and ${ranks.length - 8} more` : ""}`;
}

function cost(finding) {
  return finding.usd_per_hour === null || finding.usd_per_hour === undefined ? share(finding.share) : `${usd(finding.usd_per_hour)} / h`;
}

function measured(value, unit) {
  return unit === "s" ? seconds(value) : `${number(value)} ${unit}`.trim();
}

function evidence(finding) {
  return el("ul", null, finding.evidence.map(each => el("li", null,
    each.value === null || each.value === undefined ? each.what : `${each.what}: ${measured(each.value, each.unit)}`,
    each.expected === null || each.expected === undefined ? "" : ` (expected ${measured(each.expected, each.unit)})`,
    each.where ? el("span", { class: "quiet" }, ` ${each.where}`) : null)));
}

function remedy(finding) {
  if (!finding.remedy) return el("p", { class: "quiet" }, "No remedy is known.");
  return [el("p", null, words(finding.remedy.change)), finding.remedy.command ? command(finding.remedy.command) : null,
    finding.remedy.risk ? el("p", { class: "quiet" }, "Risk: ", words(finding.remedy.risk)) : null];
}

/** What its share is of: a finding that is open is of the last steps that were judged, or of now. */
function shareOf(finding, silent) {
  if (finding.onset === undefined) return `${share(finding.share)} of the run`;
  if (finding.account === "idle") return `${share(finding.share)} of its time ${silent ? "when last heard from" : "now"}`;
  return `${share(finding.share)} of ${silent ? "the last steps heard from it" : "its last steps"}`;
}

/** Since when a finding is open, and what it has cost since; of a recording, what it cost in it. */
function since(finding) {
  if (!finding.onset) return finding.onset === undefined && finding.usd >= CENT ? `${usd(finding.usd)} in this recording` : null;
  const cost = finding.usd === null || finding.usd === undefined ? "" : `, ${usd(finding.usd)} so far`;
  return `since ${clock(finding.onset)}${cost}`;
}

/** What its remedy may win back, from the least to the most; nothing where no range is known. */
function gain(finding) {
  const { gain_share_low: low, gain_share_high: high, gain_seconds_per_step_low: least, gain_seconds_per_step_high: most } = finding;
  if (low === null || low === undefined || low === high) return null;
  const step = least === null || least === undefined ? "" : `, ${seconds(finding.gain_seconds_per_step)} a step (${seconds(least)} to ${seconds(most)})`;
  return `gain ${share(finding.gain_share)} of the time (${share(low)} to ${share(high)})${step}`;
}

/** A finding as a card; `compact` folds evidence and remedy, `run` is the name of its run where that is not said
 * elsewhere, `extra` nodes stand at its end; `silent`: of a run that is no longer heard from. */
export function findingCard(finding, { compact = false, run = "", extra = [], silent = false } = {}) {
  const facts = [finding.account, ranksText(finding.ranks), finding.nodes?.length ? finding.nodes.slice(0, 4).join(", ") : null,
    shareOf(finding, silent), gain(finding), since(finding), `confidence ${finding.confidence.toFixed(2)}`];
  const body = [el("h4", null, "Evidence"), evidence(finding), el("h4", null, "Remedy"), remedy(finding)].flat();
  return el("article", { class: "finding" },
    el("div", { class: "cost" }, cost(finding), silent ? el("p", { class: "quiet small", style: { "font-weight": "400", "white-space": "normal" } }, "when last heard from") : null),
    el("div", null,
      el("h3", null, swatch(ownerOf(finding.account)), finding.rule, run ? [" ", el("a", { class: "quiet", href: `/flow?${new URLSearchParams({ run: finding.run, account: finding.account })}` }, run)] : null),
      el("p", null, words(finding.title)),
      el("p", { class: "quiet small" }, facts.filter(Boolean).join(" · ")),
      compact ? el("details", null, el("summary", { "data-key": `evidence ${finding.key ?? finding.rule + finding.ranks}` }, "Evidence and remedy"), body) : body, extra));
}
