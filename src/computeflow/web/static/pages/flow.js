// Flow: where the GPU-hours of a run go, by who can change it; click a band for its findings and ranks.

import { bar, el, heading, lead, section, stats, swatch, table } from "../dom.js";
import { fitted } from "../fitted.js";
import { flowDrawing, ownerBar } from "../flow_drawing.js";
import { fixed, gpuUnit, number, palmNote, plural, seconds, share, usd } from "../format.js";
import { findingCard } from "../finding_card.js";
import { navigate, withQuery } from "../router.js";
import { stateOf } from "../run_words.js";

const DRAWING_PIXELS = 560;

function runPicker(content) {
  const select = el("select", { "aria-label": "Run", on: { change: () => navigate(`/flow?${new URLSearchParams({ run: select.value })}`) } },
    content.runs.map(run => el("option", { value: run.id, selected: run.id === content.run.id }, run.name)));
  return select;
}

/** Of a run that goes on: all of it, or its last steps. */
function windowPicker(content, context) {
  if (context.session.kind !== "store") return null;
  const select = el("select", { "aria-label": "Part of the run", "data-key": "window", on: { change: () => navigate(withQuery({ window: select.value }), { quietly: true }) } },
    [["whole", "whole run"], ["last", "last steps"]].map(([value, text]) => el("option", { value, selected: content.window === value }, text)));
  return select;
}

function headStats(content, context) {
  const { bands, run } = content, live = context.session.kind === "store", silent = run.silent_since !== null;
  const of = owner => bands.filter(band => band.owner === owner).reduce((sum, band) => sum + band.share, 0);
  const total = content.gpus * content.wall_seconds;
  const [unit, size] = gpuUnit(total, content.on_host);
  const planned = content.lines.reduce((sum, line) => sum + line.expected, 0);
  const useful = "compute.model" in content.unavailable ? null : of("useful");
  const won = content.findings.reduce((sum, finding) => sum + (finding.share ?? 0), 0);
  const wonUsd = content.findings.reduce((sum, finding) => sum + (finding.usd_per_hour ?? 0), 0);
  return stats([
    { label: "Contracted", value: number(total / size), unit, note: `${plural(content.gpus, content.on_host ? "rank" : "GPU")} for ${seconds(content.wall_seconds)}` },
    planned ? { label: "Predicted", value: number(planned / size), unit, note: `for the same work: ${share(planned / total)} of it` } : null,
    { label: "Model FLOPs (MFU)", value: useful === null ? null : share(useful), note: useful === null ? `needs ${content.unavailable["compute.model"]}` : [!live ? null : content.window === "whole" ? "of the whole run" : "of the last steps", palmNote(content.mfu_palm, run.peak_precision)].filter(Boolean).join("; ") || null },
    { label: "Cost", value: run.usd_per_hour === null ? null : usd(run.usd_per_hour), unit: "/ h", note: run.usd_per_hour === null ? "needs --price" : null },
    { label: silent ? "Was recoverable" : "Recoverable", value: share(won), note: [wonUsd ? `${usd(wonUsd)} / h` : plural(content.findings.length, "finding"), silent ? "of the last steps heard from it" : live ? "of the last steps" : null].filter(Boolean).join(", ") },
  ]);
}

function bandTable(content, chosen, choose) {
  const total = content.gpus * content.wall_seconds;
  const [unit, size] = gpuUnit(total, content.on_host);
  const all = total / size;
  const amount = band => fixed(band.share * all, all);
  const expected = band => band.expected_gpu_seconds === null ? null : band.expected_gpu_seconds / total;
  const predicted = content.expected_from !== "";
  const usdPerHour = content.run.usd_per_hour;
  const columns = [
    { title: "account", cell: band => el("button", { class: "link", type: "button", "data-key": `row ${band.account}`, title: band.doc, on: { click: () => choose(band.account) } }, swatch(band.owner), band.account) },
    { title: "owner", wide: true, cell: band => band.owner },
    { title: content.on_host ? "time" : "GPU time", unit, number: true, wide: predicted, cell: amount },
    { title: "share", unit: "%", number: true, cell: band => (100 * band.share).toFixed(1) },
    predicted ? { title: "predicted", unit: "%", number: true, cell: band => band.expected_with.length ? `in ${band.expected_with[0]}` : expected(band) === null ? null : (100 * expected(band)).toFixed(1) } : null,
    usdPerHour ? { title: "cost", unit: "$/h", number: true, wide: true, cell: band => (band.share * usdPerHour).toFixed(2) } : null,
    { title: "", wide: true, cell: band => bar(band.share, band.owner, expected(band)) },
  ].filter(Boolean);
  return table(columns, content.bands, { label: "Accounts", selected: band => band.account === chosen });
}

/** Where a rank waits, it is another one that keeps it. */
const WAITS = { straggler: "Ranks that wait longest", imbalance: "Ranks that wait longest", bubble: "Ranks that wait longest" };

function ranksTitle(band, part) {
  const title = WAITS[band.account] ?? (band.ranks_of === band.account ? "Top ranks" : `Top ranks by ${band.ranks_of}`);
  return part ? `${title}, ${part}` : title;
}

const WORST = 3;

/** Before a band is chosen: what to do next. */
function advice(content) {
  const worst = content.findings.slice(0, WORST), more = content.findings.length - worst.length;
  const all = `/findings?${new URLSearchParams({ run: content.run.id })}`;
  return el("aside", { "aria-label": "Findings" },
    section("What to do next", worst.length ? worst.map(finding => cardOf(content, finding))
      : el("p", { class: "quiet" }, "No finding is open: no rule sees a remedy worth 2 % of a step."),
    more > 0 ? el("p", null, el("a", { href: all }, `${plural(more, "more finding")}`)) : null,
    el("p", { class: "quiet small" }, "Choose a band or an account for its findings and its ranks.")));
}

const cardOf = (content, finding) => findingCard(finding, { compact: true, silent: content.run.silent_since !== null });

function details(content, band) {
  const findings = content.findings.filter(finding => finding.account === band.account || finding.claims?.some(claim => claim.account === band.account));
  const most = Math.max(...band.ranks.map(part => part.gpu_seconds), 0);
  return el("aside", { "aria-label": band.account },
    section(band.account,
      el("p", { class: "quiet" }, swatch(band.owner), `${band.owner}: ${band.doc}. `,
        el("span", null, `${share(band.share)} of all.`))),
    section("Findings", findings.length ? findings.map(finding => cardOf(content, finding))
      : el("p", { class: "quiet" }, "No rule found a remedy for this account.")),
    band.ranks.length ? section(ranksTitle(band, content.ranks_in), table([
      { title: "rank", number: true, cell: part => part.rank },
      { title: "time", number: true, cell: part => seconds(part.gpu_seconds) },
      { title: "", cell: part => bar(part.gpu_seconds, band.owner, null, most) },
    ], band.ranks, { label: "Ranks" })) : null);
}

export function head(content, context) {
  if (!content.run) return heading("Flow");
  return heading("Flow", runPicker(content), content.empty ? null : windowPicker(content, context),
    el("a", { class: "button", href: `/runs/${encodeURIComponent(content.run.id)}` }, "Run details"));
}

const ROOM = 120;  // so much of it says that it is there
let pressed = null;

/** What a press on an account opened comes into view: on a phone it is below the table. */
function bringIntoView(band) {
  if (!band || band.account !== pressed) return;
  pressed = null;
  requestAnimationFrame(() => {
    const opened = document.querySelector("main aside"), top = opened?.getBoundingClientRect().top;
    if (top > innerHeight - ROOM) opened.scrollIntoView();
  });
}

export function render(content, context) {
  const asked = new URLSearchParams(location.search).get("account");
  const band = content.bands.find(each => each.account === asked) ?? null;
  const choose = account => { pressed = account; navigate(withQuery({ account: account === asked ? null : account }), { quietly: true }); };
  bringIntoView(band);
  const total = content.gpus * content.wall_seconds;
  const [unit, size] = gpuUnit(total, content.on_host);
  const contracted = `${number(total / size)} ${unit}`;
  const drawing = fitted((place, width) => {
    if (width < DRAWING_PIXELS) return place.replaceChildren(...ownerBar(content.bands, width));
    const bands = content.bands.map(each => ({ ...each, expected: each.expected_gpu_seconds === null ? null : each.expected_gpu_seconds / total }));
    place.replaceChildren(flowDrawing(bands, width, { whole: `contracted ${contracted}`, chosen: asked, choose }));
  });
  const flow = section(null, drawing, bandTable(content, asked, choose),
    content.expected_from ? el("p", { class: "quiet small" }, `Predicted for the same work, in percent of the measured time: ${content.expected_from}. Outlines in the flow and marks on bars are the prediction.`) : null,
    small(content),
    missing(content.unavailable));
  return [
    head(content, context),
    el("p", { class: "quiet small" }, [content.run.name, content.basis, content.run.silent_since === null ? null : stateOf(content.run)].filter(Boolean).join(", ")),
    lead(content.headline),
    headStats(content, context),
    el("div", { class: "columns" }, flow, band ? details(content, band) : advice(content)),
  ].filter(Boolean);
}

/** Accounts that are too small for the drawing. */
function small({ left_out_accounts: names, left_out_gpu_seconds: sum, gpus, wall_seconds: wall }) {
  return names?.length ? el("p", { class: "quiet small" }, `Below 0.05 % each: ${names.join(", ")}; ${share(sum / (gpus * wall))} together.`) : null;
}

function missing(unavailable) {
  const names = Object.entries(unavailable);
  return names.length ? el("p", { class: "quiet small" }, `Not known: ${names.map(([name, why]) => `${name} (needs ${why})`).join("; ")}.`) : null;
}
