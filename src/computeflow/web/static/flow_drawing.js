// A ledger as a flow: contracted on the left, owners in the middle, accounts on the right. Own SVG, so that
// bands can be focused and pressed, and colours follow the theme.

import { el, svg, swatch } from "./dom.js";
import { share } from "./format.js";

const NODE = 10, SLOT = 20, GAP = 8, LABEL = 190, LABEL_PREDICTED = 290, LEFT = 0;

/** Nodes one below the other: each as tall as its share, no two closer than a line of text or what was predicted. */
function stack(items, scale, gap) {
  let y = 0;
  return items.map(item => {
    const height = Math.max(item.share * scale, 1.5), outline = item.expected === null ? 0 : Math.max(item.expected * scale, 1.5);
    const slot = Math.max(height, outline, SLOT), top = y + (slot - Math.max(height, outline)) / 2;
    const node = { ...item, y: top, height, outline };
    y += slot + gap;
    return node;
  });
}

function ribbon(x0, y0, x1, y1, height) {
  const middle = (x0 + x1) / 2;
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}V${y1 + height}C${middle},${y1 + height} ${middle},${y0 + height} ${x0},${y0 + height}Z`;
}

/** Owners as near to the middle of their accounts as they can be without touching. */
function placeOwners(accounts, scale) {
  const owners = [];
  for (const account of accounts) {
    let owner = owners.at(-1);
    if (owner?.name !== account.owner) owners.push(owner = { name: account.owner, share: 0, top: account.y, bottom: 0 });
    owner.share += account.share;
    owner.bottom = account.y + account.height;
  }
  let free = -Infinity;
  for (const owner of owners) {
    owner.height = Math.max(owner.share * scale, 1.5);
    owner.y = Math.max((owner.top + owner.bottom - owner.height) / 2, free);
    free = owner.y + Math.max(owner.height, SLOT) + GAP;
  }
  return owners;
}

/**
 * Draw bands [{ account, owner, share, expected }] of a width; `chosen` is an account, `choose(account)` is called
 * for one that is pressed. `whole` is the label of what was contracted. What was expected is an outline beside the
 * account, on the same scale.
 */
export function flowDrawing(bands, width, { whole, chosen, choose }) {
  const shown = bands.filter(band => band.share > 0 || band.expected > 0), predicted = shown.some(band => band.expected !== null);
  const scale = Math.max(180, Math.min(320, width * 0.3));
  const accounts = stack(shown, scale, 2);
  const owners = placeOwners(accounts, scale);
  const last = accounts.at(-1), end = owners.at(-1), label = predicted ? LABEL_PREDICTED : LABEL;
  const height = Math.max(last.y + Math.max(last.height, last.outline), end.y + end.height, scale) + 12;
  const xs = [LEFT, Math.round((width - label) * 0.42), width - label - NODE];
  const wholeTop = Math.max(0, (height - 12 - scale) / 2);
  const parts = [svg("rect", { class: "node whole", x: xs[0], y: wholeTop, width: NODE, height: scale }),
    svg("text", { class: "strong", x: xs[0] + NODE + 6, y: wholeTop + 14 }, whole)];
  let from = wholeTop;
  for (const owner of owners) {
    const size = owner.share * scale;
    parts.unshift(svg("path", { class: `band ${owner.name}`, d: ribbon(xs[0] + NODE, from, xs[1], owner.y, size) }));
    owner.from = owner.y;
    from += size;
  }
  for (const account of accounts) {
    const owner = owners.find(each => each.name === account.owner);
    parts.push(accountBand(account, owner, xs, scale, { chosen, choose, predicted }));
    owner.from += account.share * scale;
  }
  for (const owner of owners) {
    parts.push(svg("rect", { class: `node ${owner.name}`, x: xs[1], y: owner.y, width: NODE, height: owner.height }),
      svg("text", { class: "strong", x: xs[1] + NODE + 6, y: owner.y + Math.max(owner.height / 2, 2) + 4 }, `${owner.name} ${share(owner.share)}`));
  }
  return svg("svg", { class: "flow", viewBox: `0 -4 ${width} ${height + 4}`, height: height + 4, role: "group", "aria-label": "Flow of GPU time by owner and account" }, ...parts);
}

/** The same for a narrow screen: one bar, split by owner. */
export function ownerBar(bands, width) {
  const shares = new Map();
  for (const band of bands) if (band.share > 0) shares.set(band.owner, (shares.get(band.owner) ?? 0) + band.share);
  let left = 0;
  const parts = [...shares].map(([owner, size]) => {
    const rect = svg("rect", { class: `node ${owner}`, x: left, y: 0, width: Math.max(size * width - 1, 1), height: 28 });
    left += size * width;
    return rect;
  });
  const words = [...shares].map(([owner, size]) => `${owner} ${share(size)}`);
  return [svg("svg", { class: "flow", viewBox: `0 0 ${width} 28`, height: 28, role: "img", "aria-label": `GPU time by owner: ${words.join(", ")}` }, ...parts),
    el("div", { class: "legend" }, [...shares].map(([owner], at) => el("span", null, swatch(owner), words[at])))];
}

function accountBand(account, owner, xs, scale, { chosen, choose, predicted }) {
  const size = account.share * scale, right = xs[2] + NODE + (predicted ? NODE + 3 : 0) + 6;
  const expected = account.expected === null ? null : `predicted ${share(account.expected)}`;
  const press = event => { event.preventDefault(); choose(account.account); };
  return svg("g", {
    role: "button", tabindex: 0, "data-key": `band ${account.account}`,
    "aria-pressed": String(chosen === account.account),
    "aria-label": [account.account, account.owner, share(account.share), expected].filter(Boolean).join(", "),
    on: { click: press, keydown: event => { if (event.key === "Enter" || event.key === " ") press(event); } },
  },
  svg("path", { class: `band ${account.owner}`, d: ribbon(xs[1] + NODE, owner.from, xs[2], account.y, size) }),
  svg("rect", { class: `node ${account.owner}`, x: xs[2], y: account.y, width: NODE, height: account.height }),
  expected && svg("rect", { class: "predicted", x: xs[2] + NODE + 3.5, y: account.y + .5, width: NODE - 1, height: Math.max(account.outline - 1, .5) }),
  svg("text", { x: right, y: account.y + Math.max(account.height, account.outline) / 2 + 4 }, `${account.account}  ${share(account.share)}`,
    expected && svg("tspan", { class: "quiet", dx: 6 }, expected)));
}
