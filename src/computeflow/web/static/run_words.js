// How a run is, in words that all pages share.

import { el } from "./dom.js";
import { when } from "./format.js";

/** The same for a table: the state stands out; a phone has no room for since when. */
export function stateTag(run) {
  const [state, ...since] = stateOf(run).split(" ");
  return [el("span", { class: "tag" }, state), since.length ? el("span", { class: "quiet small wide" }, ` ${since.join(" ")}`) : null];
}

/** Its state; of a run that is not over and not heard of, since when. */
export function stateOf(run) {
  return run.silent_since === null || run.silent_since === undefined ? run.state : `silent since ${when(run.silent_since)}`;
}

/** What the step and the MFU of all these runs are of; "" where they differ. */
export function basisOf(runs) {
  const known = new Set(runs.map(run => run.basis));
  return known.size === 1 ? [...known][0] : "";
}

/** What the goodput of these runs is: where the host computes, the time of ranks. */
export function goodputOf(runs) {
  const hosts = runs.filter(run => run.device === "cpu").length;
  return `share of ${hosts === runs.length ? "rank" : hosts ? "GPU or rank" : "GPU"} time in kept steps`;
}
