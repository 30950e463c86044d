// What is known of a run's attempts, ranks and nodes, from its recording or from a collector.

import { bar, el, section, table } from "./dom.js";
import { number, secondsCell, share, si, when, whole, zone } from "./format.js";

const MOST = 64;

/** The facts of a recorded run in an audit, null for anything else. */
function recorded(content) {
  return content.result?.observed?.find(each => each.kind === "recording")?.facts ?? null;
}

function attempts(facts) {
  if (facts.attempts.length < 2) return null;
  return section("Attempts", table([
    { title: "attempt", number: true, cell: each => each.attempt + 1 },
    { title: "started", unit: zone(), cell: each => when(each.start) },
    { title: "lasted", number: true, cell: each => secondsCell(each.end - each.start) },
    { title: "steps", number: true, cell: each => whole(each.steps) },
    { title: "redone", unit: "steps", number: true, cell: each => whole(each.redone_steps) },
    { title: "ended", cell: each => each.ended || "unknown" },
  ], facts.attempts, { label: "Attempts" }));
}

function memory(rank) {
  const device = rank.memory.reserved ?? rank.memory.allocated ?? null;
  return { device, host: rank.memory.host ?? null };
}

function ranks(facts) {
  const shown = [...facts.per_rank].sort((a, b) => b.waited_for_seconds - a.waited_for_seconds).slice(0, MOST);
  const most = Math.max(...shown.map(rank => rank.waited_for_seconds), 0);
  const left = facts.per_rank.length - shown.length;
  return section("Ranks, most waited for first", table([
    { title: "rank", number: true, cell: rank => rank.rank },
    { title: "node", wide: true, cell: rank => rank.host },
    { title: "step", unit: "median", number: true, cell: rank => secondsCell(rank.step_seconds) },
    { title: "without waits", number: true, wide: true, cell: rank => secondsCell(rank.own_seconds) },
    { title: "waits for others", number: true, wide: true, cell: rank => secondsCell(rank.wait_seconds) },
    { title: "waited for", number: true, cell: rank => secondsCell(rank.waited_for_seconds) },
    { title: "", wide: true, cell: rank => bar(rank.waited_for_seconds, "site", null, most) },
    { title: "came last", number: true, wide: true, cell: rank => share(rank.came_last) },
    { title: "GPU memory", number: true, wide: true, cell: rank => si(memory(rank).device, "B") },
    { title: "host memory", number: true, cell: rank => si(memory(rank).host, "B") },
  ], shown, { label: "Ranks" }), left ? el("p", { class: "quiet small" }, `${whole(left)} more ranks are in the JSON.`) : null);
}

function slowest(live) {
  return section("Ranks, most waited for first", table([
    { title: "rank", number: true, cell: rank => rank.rank },
    { title: "node", cell: rank => rank.node },
    { title: "step", unit: "median", number: true, cell: rank => secondsCell(rank.step_seconds) },
    { title: "without waits", unit: "last steps", number: true, wide: true, cell: rank => secondsCell(rank.own_seconds) },
    { title: "later than its peers", number: true, cell: rank => secondsCell(rank.late_seconds) },
    { title: "last heard from", wide: true, cell: rank => when(rank.last_seen) },
  ], live.slowest, { label: "Ranks" }));
}

function nodes(content, live) {
  if (live.state === "ended") return null;  // what its nodes read now is of another run
  const mine = content.result.nodes.filter(node => live.nodes.includes(node.node));
  if (!mine.some(node => Object.keys(node.readings).length)) return null;
  const reading = (name, unit, digits = 3) => node => node.readings[name] === undefined ? null : `${number(node.readings[name], digits)} ${unit}`;
  return section("Nodes, latest readings, largest over their GPUs", table([
    { title: "node", cell: node => node.node },
    { title: "GPUs", number: true, cell: node => whole(node.gpus) },
    { title: "power", number: true, cell: reading("DCGM_FI_DEV_POWER_USAGE", "W") },
    { title: "limit", number: true, wide: true, cell: reading("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "W") },
    { title: "temperature", number: true, cell: reading("DCGM_FI_DEV_GPU_TEMP", "°C") },
    { title: "SM clock", number: true, wide: true, cell: reading("DCGM_FI_DEV_SM_CLOCK", "MHz", 4) },
    { title: "memory", number: true, cell: node => node.readings.DCGM_FI_DEV_FB_USED === undefined ? null : si(node.readings.DCGM_FI_DEV_FB_USED * 2 ** 20, "B") },
    { title: "last event", wide: true, cell: node => node.signals.slice(-1)[0] ?? null },
  ], mine, { label: "Nodes" }));
}

function energy(content) {
  const joules = content.result?.ledger?.entries?.reduce((sum, entry) => entry.joules === null ? sum : (sum ?? 0) + entry.joules, null) ?? null;
  const total = content.result?.ledger ? content.result.ledger.gpus * content.result.ledger.wall_seconds : 0;
  return joules === null ? null : el("p", { class: "quiet small" }, `Energy: ${si(joules, "J")}, ${si(joules / total, "W")} a GPU.`);
}

export function runDetails(content) {
  const facts = recorded(content);
  if (facts) return [attempts(facts), ranks(facts), energy(content)];
  const live = content.result?.runs?.find(run => run.run === content.run.id);
  return live ? [slowest(live), nodes(content, live)] : [energy(content)];
}
