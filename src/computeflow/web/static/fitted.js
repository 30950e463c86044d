// Drawings that are drawn again when the room for them, or the theme, changes.

import { el } from "./dom.js";

const drawn = new Map();
const observer = new ResizeObserver(entries => {
  for (const { target, contentRect } of entries) redraw(target, Math.floor(contentRect.width));
});

function redraw(target, width) {
  const drawing = drawn.get(target);
  if (!drawing || !width || width === drawing.width) return;
  drawing.width = width;  // it was on the page: when it no longer is, it can be forgotten
  drawing.draw(target, width);
}

addEventListener("themechange", () => {
  for (const [target, drawing] of drawn) {
    if (drawing.width && target.isConnected) drawing.draw(target, drawing.width);
  }
});

/** Draw at once what would be drawn with the next frame: what is below keeps its place. */
export function drawNow() {
  const waiting = [...drawn].filter(([target, drawing]) => !drawing.width && target.isConnected).map(([target]) => [target, target.clientWidth]);
  for (const [target, width] of waiting) redraw(target, width);  // all are measured first: a drawing moves what is below it
}

/** A place for a drawing; `draw(place, width)` fills it, at first when it is on the page. */
export function fitted(draw, properties = {}) {
  for (const [target, drawing] of drawn) {
    if (drawing.width && !target.isConnected) { observer.unobserve(target); drawn.delete(target); }
  }
  const target = el("div", { class: "drawing", ...properties });
  drawn.set(target, { draw, width: 0 });
  requestAnimationFrame(() => observer.observe(target));
  return target;
}

/** The value of a custom property of the page's style: canvas knows no CSS. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A text that follows the pointer inside a drawing. */
export function tip(place) {
  const node = el("div", { class: "tip", role: "status", hidden: true });
  place.append(node);
  return {
    show(x, y, text) {
      node.textContent = text;
      node.hidden = false;
      const room = place.clientWidth - node.offsetWidth - 4;
      node.style.left = `${Math.max(0, Math.min(x + 12, room))}px`;
      node.style.top = `${Math.max(0, y - node.offsetHeight - 8)}px`;
    },
    hide() { node.hidden = true; },
  };
}
