// Arrow keys inside a drawing: from cell to cell.

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [-20, 0], PageDown: [20, 0], Home: [-Infinity, 0], End: [Infinity, 0] };

/** The nearest of so many places, from zero on. */
export const nearest = (at, count) => Math.max(0, Math.min(count - 1, at));

/** Columns and rows that a key moves by, null where it moves nothing; the page does not scroll then. */
function moveOf(event) {
  const move = event.ctrlKey || event.metaKey || event.altKey ? null : MOVES[event.key] ?? null;
  if (move) event.preventDefault();
  return move;
}

/**
 * A drawing that the keyboard enters: `put()` shows the place it is at, `move(columns, rows)` goes on, `leave()` hides
 * it, `choose()` is what Enter does. `node` needs a `data-key`, to keep the focus when it is drawn anew.
 */
export function enterable(node, { put, move, leave, choose }) {
  node.addEventListener("focus", () => { if (node.matches(":focus-visible")) put(); });
  node.addEventListener("blur", leave);
  node.addEventListener("keydown", event => {
    if (event.key === "Enter" && choose) return choose();
    const moved = moveOf(event);
    if (moved) { move(...moved); put(); }
  });
}
