// Figures of `computeflow.views`, the same as in the HTML reports, drawn by Plotly. Its JavaScript (4.8 MB)
// comes from the Python package, once, and only on pages that have a figure.

import { el, unbroken, words } from "./dom.js";
import { colour, fitted } from "./fitted.js";

/** Colours of `views.figures` and `views.heatmaps` that are no owner's, and the page's own in their place. */
const THEMED = { "#5B6CDD": "accent", "#A87400": "second", "#7F7F7F": "mixed", "rgba(0,45,80,1)": "strongest" };

let loading = null;

/** A copy (Plotly writes into what it is given) in the colours of the theme. */
function themed(value) {
  if (Array.isArray(value)) return value.map(themed);
  if (value !== null && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, of]) => [key, themed(of)]));
  return value in THEMED ? colour(THEMED[value]) : value;
}

async function load() {
  const { MARKS } = await import("./plotly_marks.js");  // so that it adds no style of its own
  document.head.append(...MARKS.map(id => el("meta", { id })));
  return new Promise((resolve, reject) => {
    const script = el("script", { src: "/static/plotly.min.js" });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new Error("The figure's JavaScript could not be loaded: the server does not answer, or its plotly is missing (pip install 'computeflow[serve]').")));
    document.head.append(script);
  });
}

/** A figure { title, data, layout, summary } with its title above and its words below. */
export function plot(figure) {
  const said = figure.summary ? el("p", { class: "quiet small" }, words(figure.summary)) : null;
  const place = fitted(async (target, width) => {
    try {
      const library = await (loading ??= load().catch(error => { loading = null; throw error; }));
      const { data, layout } = themed({ data: figure.data, layout: figure.layout });
      await library.newPlot(target, data, { ...layout, width }, { displayModeBar: false });
      target.removeAttribute("aria-busy");
    } catch (error) {
      target.removeAttribute("aria-busy");
      target.replaceChildren(el("p", { class: "error" }, error.message));
    }
  }, { role: "img", "aria-busy": "true", "aria-label": figure.title, style: { "min-height": `${figure.layout.height ?? 200}px` } });
  return el("section", { class: "plot" }, el("h2", null, unbroken(figure.title)), place, said);
}
