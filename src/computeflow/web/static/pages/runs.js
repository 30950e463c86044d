// All runs, the latest first.

import { el, heading, lead, table } from "../dom.js";
import { GOODPUT, partOf, stateTag } from "../run_words.js";
import { number, seconds, share, usd, when, whole } from "../format.js";

export function render(content, context) {
  const part = partOf(context.session), of = title => context.session.kind === "store" ? [title, el("span", { class: "unit wide" }, `, ${part}`)] : title;
  return [
    heading("Runs"),
    lead(content.headline),
    table([
      { title: "run", cell: run => el("a", { href: `/runs/${encodeURIComponent(run.id)}` }, run.name) },
      { title: "state", cell: stateTag },
      { title: "started", wide: true, cell: run => when(run.started) },
      { title: "ranks", number: true, wide: true, cell: run => whole(run.gpus) },
      { title: "steps", number: true, wide: true, cell: run => whole(run.step) },
      { title: of("step"), number: true, cell: run => seconds(run.step_seconds) },
      { title: "tokens", unit: "1/s", number: true, wide: true, cell: run => number(run.tokens_per_second) },
      { title: of("MFU"), number: true, cell: run => share(run.mfu) },
      { title: "goodput", number: true, wide: true, cell: run => share(run.goodput) },
      { title: "restarts", number: true, wide: true, cell: run => whole(run.restarts) },
      { title: "cost", unit: "per h", number: true, wide: true, cell: run => usd(run.usd_per_hour) },
    ], content.runs, { label: "Runs" }),
    el("p", { class: "quiet small" }, `Step (median) and MFU: ${part}. Goodput: ${GOODPUT} since the start.`),
  ].filter(Boolean);
}
