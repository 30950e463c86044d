// Accuracy: how far predictions are from measured runs; the misses are shown like the hits.

import { el, heading, lead, stats, workingLine } from "../dom.js";
import { answer } from "../forms.js";
import { share, whole } from "../format.js";
import { partNodes } from "../parts.js";

export const live = false;
export const address = () => "/session";

function draw(content) {
  const { summary, skipped } = content.result;
  return [
    lead(content.headline),
    stats([
      { label: "Measured runs", value: whole(summary.n), note: `${whole(skipped.length)} more could not be predicted` },
      { label: "Mean error", value: share(summary.mape), note: "of a step's time, either way" },
      { label: "Median error", value: share(summary.median_ape) },
      { label: "90 % are within", value: share(summary.p90_ape) },
      { label: "Bias", value: share(Math.abs(summary.bias)), note: `predicted too ${summary.bias < 0 ? "fast" : "slow"} on average` },
      { label: "Inside the range", value: share(summary.in_range), note: "80 % is what it promises" },
    ]),
    ...partNodes(content.parts),
  ];
}

export function render(_, context) {
  const place = el("div", { class: "answered", "aria-busy": "true" });
  answer("/accuracy", context.signal, working => place.replaceChildren(workingLine(working)))
    .then(content => place.replaceChildren(...draw(content)))
    .catch(error => place.replaceChildren(el("p", { class: "error", role: "alert" }, error.message)))
    .finally(() => place.removeAttribute("aria-busy"));
  return [heading("Accuracy"), place];
}
