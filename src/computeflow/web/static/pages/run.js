// One run: its numbers, step times over the run, rank by step as a heat map.

import { heatMap, lineChart } from "../charts.js";
import { el, heading, lead, section, stats } from "../dom.js";
import { navigate, withQuery } from "../router.js";
import { plot } from "../plot.js";
import { readingCharts } from "../reading_charts.js";
import { runDetails } from "../run_details.js";
import { goodputOf, stateOf } from "../run_words.js";
import { number, palmNote, plural, secondsCell, share, usd, when, whole, zone } from "../format.js";

/** Whole steps, or without waits for others, where those are known: then the late rank stands out. */
function heatChoice(content) {
  if (content.heat.ranks.length < 2) return null;
  if (content.waits_missing) return el("p", { class: "quiet small" }, `The map shows whole steps, waits for others included: ${content.waits_missing}.`);
  const select = el("select", { "aria-label": "What the heat map shows", "data-key": "heat", on: { change: () => navigate(withQuery({ of: select.value }), { replace: true }) } },
    [["seconds", "whole step"], ["own", "without waits for others"]].map(([value, text]) => el("option", { value, selected: content.heat.of === value }, text)));
  return el("p", null, select);
}

/** The answer; of a run that is watched, with the way to its findings. */
function headline(content, live) {
  const text = lead(content.headline), found = content.result?.findings?.some(finding => finding.run === content.run.id);
  if (live && found) text.append(" ", el("a", { href: `/findings?${new URLSearchParams({ run: content.run.id })}` }, "Evidence and remedy"));
  return text;
}

export function render(content, context) {
  const { run, curve, heat } = content, part = run.basis, live = context.session.kind === "store";
  return [
    heading(run.name, el("a", { class: "button", href: `/timeline/${encodeURIComponent(run.id)}` }, "Timeline"), el("a", { class: "button", href: `/flow?${new URLSearchParams({ run: run.id })}` }, "Flow"), el("a", { class: "button", href: `/findings?${new URLSearchParams({ run: run.id })}` }, "Findings")),
    el("p", { class: "quiet small" }, [stateOf(run), run.started === null ? null : `started ${when(run.started)} ${zone()}`, run.device].filter(Boolean).join(" · ")),
    headline(content, live),
    stats([
      { label: "Step", value: secondsCell(run.step_seconds), note: run.step_seconds_recorded === null ? `median, ${part}` : `${part}; ${secondsCell(run.step_seconds_recorded)} as recorded` },
      { label: "MFU", value: run.mfu === null ? null : share(run.mfu), note: run.mfu === null ? "needs the model's FLOPs" : [part, palmNote(run.mfu_palm, run.peak_precision)].filter(Boolean).join("; ") },
      { label: "Goodput", value: run.goodput === null ? null : share(run.goodput), note: run.goodput !== null ? goodputOf([run]) : run.state === "recorded" ? "needs the whole run, a trace has a part" : "not known yet" },
      { label: "Throughput", value: run.tokens_per_second === null ? null : number(run.tokens_per_second), unit: run.tokens_per_second === null ? null : "tokens/s", note: run.tokens_per_second !== null ? part : run.state === "recorded" ? "a trace does not say its tokens" : "needs the tokens of a step" },
      { label: "Steps", value: whole(run.step), note: `on ${plural(run.gpus, "rank")}` },
      { label: "Restarts", value: whole(run.restarts) },
      run.usd_per_hour === null ? null : { label: "Cost", value: usd(run.usd_per_hour), unit: "/ h" },
    ]),
    curve ? section(`Step time over the run${content.steps_basis ? `, ${content.steps_basis}` : ""}`, lineChart(curve, { ideal: content.ideal_step_seconds, at: context.state.step ??= { column: 0 } })) : el("p", { class: "quiet" }, content.steps_missing),
    readingCharts(run, context.session.kind === "store" ? "Power, memory, temperature, clock" : "Memory over the run", context.state, content.left_out),
    heat ? section("Step time by rank", heatChoice(content), heatMap(heat, { at: context.state.heatCell ??= { column: 0, row: 0 }, choose: step => navigate(`/timeline/${encodeURIComponent(run.id)}?${new URLSearchParams(step)}`) }),
      el("p", { class: "quiet small" }, "Click a cell, or press Enter on it, to open the timeline of its longest step.")) : null,
    runDetails(content),
    content.figures.map(plot),
  ].flat().filter(Boolean);
}
