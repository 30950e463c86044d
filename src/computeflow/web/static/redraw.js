// New content in the place of the old, without taking anything from the reader: scroll, focus, what was opened,
// what is selected and what the pointer shows stay.

import { drawNow } from "./fitted.js";

const FOCUSABLE = "a, button, select, input, summary, [tabindex], [role=button]";
let pointer = null;

addEventListener("pointermove", event => { if (event.isTrusted) pointer = { clientX: event.clientX, clientY: event.clientY }; }, { passive: true });

/** What an element is to a reader: the same after the page was drawn anew. */
function meaning(node) {
  return node.dataset.key ?? [node.tagName, node.getAttribute("aria-label") ?? node.getAttribute("href") ?? node.textContent.trim().slice(0, 80)].join(" ");
}

/** Which of the elements with this meaning it is: several may have the same. */
function placeOf(node, among) {
  const alike = [...among].filter(each => meaning(each) === meaning(node));
  return { meaning: meaning(node), at: alike.indexOf(node) };
}

function found(kept, among) {
  return [...among].filter(each => meaning(each) === kept.meaning)[kept.at];
}

const folds = place => [...place.querySelectorAll("details")].map(each => each.querySelector("summary")).filter(Boolean);

/** Whether the reader has text of this place selected: it would be gone. */
export function isSelecting(place) {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && place.contains(selection.anchorNode);
}

/** Replace what stands in a place. */
export function redraw(place, nodes) {
  const focused = place.contains(document.activeElement) && document.activeElement !== place ? placeOf(document.activeElement, place.querySelectorAll(FOCUSABLE)) : null;
  const opened = folds(place).filter(each => each.parentNode.open).map(each => placeOf(each, folds(place)));
  const scroll = scrollY;
  place.style.minHeight = `${place.offsetHeight}px`;  // nothing moves while the drawings are drawn
  place.replaceChildren(...nodes);
  drawNow();
  for (const each of opened) found(each, folds(place))?.parentNode.setAttribute("open", "");
  place.style.minHeight = "";
  if (focused) found(focused, place.querySelectorAll(FOCUSABLE))?.focus({ preventScroll: true });
  if (scrollY !== scroll) scrollTo({ top: scroll, behavior: "instant" });
  if (pointer) pointAgain(place);
}

/** What the pointer rests on tells of itself again. */
function pointAgain(place) {
  const under = document.elementFromPoint(pointer.clientX, pointer.clientY);
  if (under && place.contains(under) && under.closest(".drawing")) under.dispatchEvent(new PointerEvent("pointermove", { ...pointer, bubbles: true }));
}
