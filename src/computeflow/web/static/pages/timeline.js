// One step along time, a line for each rank: phases, the gaps between them, and who waited for whom.

import { el, heading, section, stats, svg, swatch, table, words } from "../dom.js";
import { fitted, tip } from "../fitted.js";
import { number, plural, seconds, secondsCell, share, whole } from "../format.js";
import { enterable, nearest } from "../keys.js";
import { ticks } from "../charts.js";
import { navigate, withQuery } from "../router.js";

const LABEL = 72, ROW = 18, TALL_ROW = 30, AXIS = 22;
const FEW = 4;

/** The class of a phase's colour: its owner, and one of its own for phases of one owner that must be told apart. */
function looks({ name, account, owner }) {
  if (name === "host" || name === "gap") return `${owner} gap`;  // of a trace: the device waits for the host
  return account === "compute" ? `${owner} ${name === "backward" ? "backward" : "compute"}` : owner;
}

const endOf = span => span.start_seconds + (span.length_seconds ?? span.seconds);

/** The span that lies at a moment, or begins next after it, of those of a rank in their order. */
function spanAt(spans, moment) {
  const found = spans.findIndex(span => endOf(span) > moment);
  return found < 0 ? spans.length - 1 : found;
}

/** `at`: the keyboard's span, which outlives a drawing. */
function drawing(timeline, at) {
  const tall = timeline.ranks.length > FEW ? ROW : TALL_ROW, height = timeline.ranks.length * tall + AXIS;
  const inOrder = timeline.ranks.map(line => [...line.spans].sort((a, b) => a.start_seconds - b.start_seconds || b.seconds - a.seconds));
  return fitted((place, width) => {
    const inner = width - LABEL - 8, x = at => LABEL + inner * at / timeline.seconds;
    const [size, unit] = timeline.seconds < 2 ? [1e3, "ms"] : [1, "s"];
    const marks = ticks(0, timeline.seconds * size, Math.max(2, inner / 110)).map(at => [
      svg("line", { class: "grid", x1: x(at / size), x2: x(at / size), y1: 0, y2: height - AXIS }),
      svg("text", { class: "quiet", x: x(at / size), y: height - 6, "text-anchor": !at ? "start" : x(at / size) > width - 30 ? "end" : "middle" }, `${number(at)} ${unit}`)]);
    const tell = { place: null }, shown = new Map();
    const rows = timeline.ranks.map((line, row) => {
      const top = row * tall;
      return svg("g", null, svg("text", { class: "quiet", x: LABEL - 8, y: top + tall / 2 + 4, "text-anchor": "end" }, `rank ${line.rank}`),
        line.spans.map(span => {
          const wait = span.name === "wait";
          const rect = svg("rect", {
            class: `span ${looks(span)}`, x: x(span.start_seconds), y: top + (wait ? tall / 2 + 1 : 2),
            width: Math.max(inner * span.seconds / timeline.seconds, 0.6), height: wait ? tall / 2 - 3 : tall - 4,
          });
          if (span.length_seconds > span.seconds) {  // short pieces as one, as strong as they fill it
            rect.setAttribute("width", Math.max(inner * span.length_seconds / timeline.seconds, 0.6));
            rect.setAttribute("fill-opacity", Math.max(span.seconds / span.length_seconds, 0.25));
          }
          const show = (left, down) => tell.place.show(left, down, `rank ${line.rank}: ${span.name} ${seconds(span.seconds)}\n${span.account}, ${span.owner}${span.detail ? `\n${span.detail}` : ""}`);
          rect.addEventListener("pointermove", event => {
            const box = place.getBoundingClientRect();
            show(event.clientX - box.left, event.clientY - box.top);
          });
          rect.addEventListener("pointerleave", () => tell.place.hide());
          shown.set(span, { rect, show: () => show(x(span.start_seconds), top + 8) });
          return rect;
        }));
    });
    const picture = svg("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, height, tabindex: "0", "data-key": "timeline", role: "img", "aria-label": `Step ${timeline.step} of ${plural(timeline.ranks.length, "rank")} along time` }, marks.flat(), rows);
    const leave = () => { tell.place.hide(); picture.querySelector(".at")?.classList.remove("at"); };
    const spans = () => inOrder[at.row = nearest(at.row, inOrder.length)];
    enterable(picture, {
      leave,
      put: () => {
        leave();
        const found = shown.get(spans()[at.column = nearest(at.column, spans().length)]);
        found?.rect.classList.add("at");
        found?.show();
      },
      move: (columns, rows) => {
        const moment = spans()[nearest(at.column, spans().length)]?.start_seconds ?? 0;
        at.row += rows;
        at.column = rows ? spanAt(spans(), moment) : at.column + columns;
      },
    });
    place.replaceChildren(picture);
    tell.place = tip(place);
  });
}

function totals(timeline) {
  const sums = new Map();
  for (const line of timeline.ranks) {
    for (const span of line.spans) {
      const sum = sums.get(span.name) ?? { name: span.name, account: span.account, owner: span.owner, first: span.start_seconds, seconds: 0, most: 0, rank: 0 };
      sum.seconds += span.seconds;
      sum.first = Math.min(sum.first, span.start_seconds);
      sums.set(span.name, sum);
    }
    for (const name of new Set(line.spans.map(span => span.name))) {
      const mine = line.spans.filter(span => span.name === name).reduce((sum, span) => sum + span.seconds, 0);
      const sum = sums.get(name);
      if (mine > sum.most) Object.assign(sum, { most: mine, rank: line.rank });
    }
  }
  return [...sums.values()].sort((a, b) => b.seconds - a.seconds);
}

export const name = ({ run, timeline }) => timeline ? `${run.name}, step ${timeline.step}` : run?.name;

/** The field of a step: `go` is told of another one. */
function stepField(content, step, go) {
  const typed = event => { if (event.target.value !== "") go(Number(event.target.value)); };
  return el("input", { type: "number", value: step, placeholder: step === null ? `${content.first_step} to ${content.last_step}` : null, min: content.first_step, max: content.last_step, "aria-label": "Step", "data-key": "step", on: { change: typed, keydown: event => { if (event.key === "Enter") typed(event); } } });
}

const runLink = run => el("a", { href: `/runs/${encodeURIComponent(run.id)}` }, run.name);

/** Where the step that was asked for cannot be drawn: a way to others, and to the run. */
export function head(content) {
  const { run, first_step: first, last_step: last } = content;
  if (!run) return heading("Timeline");
  const attempt = content.attempts.length > 1 ? { attempt: content.attempt } : {};
  let asked = null;  // Enter is a key and a change
  const go = step => {
    const to = Math.max(first, Math.min(last, step));
    if (to === asked) return;
    asked = to;
    navigate(withQuery({ step: to, ...attempt }));
  };
  return el("div", null,
    heading("Timeline", ...(first === null ? [] : [stepField(content, null, go), el("button", { class: "button", type: "button", on: { click: () => go(last) } }, "Last step")])),
    el("p", { class: "quiet small" }, runLink(run)));
}

export function render(content, context) {
  const { timeline, run } = content;
  const attempt = content.attempts.length > 1 ? { attempt: timeline.attempt } : {};
  let asked = timeline.step;
  const go = step => {
    const to = Math.max(content.first_step, Math.min(content.last_step, step));
    if (to === asked) return;
    asked = to;
    navigate(withQuery({ step: to, ...attempt }), { replace: true });
  };
  const sums = totals(timeline), inTime = [...sums].sort((a, b) => a.first - b.first);
  const several = timeline.ranks.length > 1, attempts = Math.max(timeline.attempt, run.restarts ?? 0) + 1;
  const all = timeline.ranks.reduce((sum, line) => sum + line.seconds, 0);
  const query = new URLSearchParams({ step: timeline.step, ...attempt });
  return [
    heading(`Step ${whole(timeline.step)}`,
      el("button", { class: "button", type: "button", "data-key": "previous", on: { click: () => go(timeline.step - 1) } }, "Previous"), stepField(content, timeline.step, go),
      el("button", { class: "button", type: "button", "data-key": "next", on: { click: () => go(timeline.step + 1) } }, "Next"),
      el("a", { class: "button", href: `/trace/${encodeURIComponent(run.id)}.json?${query}`, download: "" }, "Download for Perfetto")),
    el("p", { class: "quiet small" }, runLink(run),
      timeline.ranks.length < timeline.ranks_total ? `, the ${timeline.ranks.length} ranks of ${timeline.ranks_total} that take longest` : "",
      ". The file opens at ui.perfetto.dev."),
    stats([
      { label: "Step", value: seconds(timeline.seconds), note: "first start to last end" },
      { label: "Ranks", value: whole(timeline.ranks_total) },
      attempts > 1 ? { label: "Attempt", value: timeline.attempt + 1, note: `of ${attempts}` } : null,
    ]),
    section(several ? "Timeline by rank" : "Timeline", drawing(timeline, context.state.span ??= { row: 0, column: 0 }), el("div", { class: "legend" }, inTime.map(sum => el("span", null, swatch(looks(sum)), sum.name))),
      sums.some(sum => sum.account === "compute") ? el("p", { class: "quiet small" }, "Green is compute: the useful work is in it, and the MFU says how much of it is useful.") : null),
    section("Time by phase", table([
      { title: "phase", cell: sum => [swatch(looks(sum)), sum.name] },
      { title: "account", wide: true, cell: sum => sum.account },
      { title: several ? "time of all ranks" : "time", number: true, cell: sum => secondsCell(sum.seconds) },
      { title: "share", number: true, cell: sum => share(sum.seconds / all) },
      several ? { title: "most", number: true, wide: true, cell: sum => `${secondsCell(sum.most)}, rank ${sum.rank}` } : null,
    ].filter(Boolean), sums, { label: "Phases" }),
      sums.some(sum => sum.name === "wait") ? el("p", { class: "quiet small" }, "Waits for other ranks are inside other phases, so the shares add up to more than 100 %.") : null,
      content.waits_missing ? el("p", { class: "quiet small" }, "Who waited for whom is not known: ", words(content.waits_missing), ".") : null),
  ].filter(Boolean);
}
