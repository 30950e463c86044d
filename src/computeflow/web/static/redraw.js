// New content in the place of the old, without taking anything from the reader: scroll, focus, what was opened,
// what is selected and what the pointer shows stay.

import { drawNow } from "./fitted.js";

const FOCUSABLE = "a, button, select, input, summary, [tabindex], [role=button]", SCROLLED = ".table";
const TYPING_MS = 1500;
let pointer = null, pressed = null, typed = 0;

addEventListener("pointerdown", event => { pressed = event.target; }, { capture: true });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = null; }, { capture: true });
addEventListener("input", () => { typed = performance.now(); }, { capture: true });
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

const canSeeOpen = CSS.supports("selector(:open)");

/** Whether the reader does something in this place that another drawing would take away: selects text, presses
 * something, types, or has a list open. */
export function isInUse(place) {
  const selection = getSelection();
  return (selection !== null && !selection.isCollapsed && place.contains(selection.anchorNode))
    || (pressed !== null && place.contains(pressed))
    || (performance.now() - typed < TYPING_MS && place.contains(document.activeElement))
    || (canSeeOpen && place.querySelector("select:open") !== null);
}

/** What stands in a field, and the caret in it; an element that goes away tells nobody that it was changed. */
function takeTyped(node) {
  if (!(node instanceof HTMLInputElement) || node.value === node.defaultValue) return null;
  node.addEventListener("change", event => event.stopImmediatePropagation(), { capture: true });
  return { value: node.value, from: node.selectionStart, to: node.selectionEnd };
}

function giveTyped(node, kept) {
  if (!(node instanceof HTMLInputElement)) return;
  node.value = kept.value;
  if (kept.from !== null) node.setSelectionRange(kept.from, kept.to);
}

/** Replace what stands in a place. */
export function redraw(place, nodes) {
  const active = place.contains(document.activeElement) && document.activeElement !== place ? document.activeElement : null;
  const focused = active && placeOf(active, place.querySelectorAll(FOCUSABLE)), written = active && takeTyped(active);
  const aside = [...place.querySelectorAll(SCROLLED)].filter(each => each.scrollLeft).map(each => ({ ...placeOf(each, place.querySelectorAll(SCROLLED)), left: each.scrollLeft }));
  const opened = folds(place).filter(each => each.parentNode.open).map(each => placeOf(each, folds(place)));
  const scroll = scrollY;
  place.style.minHeight = `${place.offsetHeight}px`;  // nothing moves while the drawings are drawn
  place.replaceChildren(...nodes);
  drawNow();
  for (const each of opened) found(each, folds(place))?.parentNode.setAttribute("open", "");
  for (const each of aside) { const table = found(each, place.querySelectorAll(SCROLLED)); if (table) table.scrollLeft = each.left; }
  place.style.minHeight = "";
  const again = focused && found(focused, place.querySelectorAll(FOCUSABLE));
  again?.focus({ preventScroll: true });
  if (again && written) giveTyped(again, written);
  if (scrollY !== scroll) scrollTo({ top: scroll, behavior: "instant" });
  if (pointer) pointAgain(place);
}

/** What the pointer rests on tells of itself again. */
function pointAgain(place) {
  const under = document.elementFromPoint(pointer.clientX, pointer.clientY);
  if (under && place.contains(under) && under.closest(".drawing")) under.dispatchEvent(new PointerEvent("pointermove", { ...pointer, bubbles: true }));
}
