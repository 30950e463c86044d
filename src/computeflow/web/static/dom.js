// Elements from values. Text only ever becomes a text node: no string is read as HTML anywhere.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "style") for (const [key, to] of Object.entries(value)) node.style.setProperty(key, to);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false)
    .map(child => child instanceof Node ? child : document.createTextNode(String(child))));
  return node;
}

/** An element: el("td", { class: "number", on: { click } }, "12", el("small", null, "GPU-h")). */
export function el(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

const UNIT = /(?<=\d) (?=%|(?:µs|ms|s|min|h|d|days|[kMGTP]?(?:[BWJ]|Hz)|[kMG]Wh|GPUs)\b)/g, GPU_UNIT = /(?:GPU|rank)-(?=[hs]\b)/g;
/** Text in which no line ends between a number and its unit. */
export function unbroken(text) {
  return String(text).replaceAll(UNIT, "\u00a0").replaceAll(GPU_UNIT, "$&\u2060");
}

const SAID = /(`[^`]+`|(?<![\w-])--[a-z][a-z-]*[a-z]|(?<![\w-])-o json\b)/;
/**
 * A text of the library as nodes: what stands between backticks, and options of the command line, as code;
 * "-o json" is a link to the JSON of this page. `names`: options that the page has as a field, by their label.
 */
export function words(text, names = {}) {
  return String(text ?? "").split(SAID).map((part, at) => {
    if (at % 2 === 0) return unbroken(part);
    if (part === "-o json") return el("a", { href: `${location.pathname}.json${location.search}`, target: "_blank", rel: "noopener" }, "JSON");
    const code = part.replaceAll("`", ""), label = names[code.replace(/^--/, "")];
    return label ? `“${label}”` : el("code", null, code);
  });
}

/** The answer in one sentence or two, below the head of a page. */
export function lead(text, names) {
  return text ? el("p", { class: "lead" }, words(text, names)) : null;
}

const LONG_UNIT = 8;
/** Numbers first: [{ label, value, unit, note }]. A long unit stands below, where the others have their notes. */
export function stats(items) {
  return el("dl", { class: "stats" }, items.filter(Boolean).map(item => {
    const below = (item.unit ?? "").length >= LONG_UNIT, notes = [below ? item.unit : null, item.note].filter(Boolean);
    return el("div", null, el("dt", null, item.label),
      el("dd", null, unbroken(item.value ?? "–"), item.unit && !below ? el("small", null, `\u00a0${item.unit}`) : null),
      notes.map(note => el("dd", { class: "note" }, [note].flat().map(part => part instanceof Node ? part : unbroken(part ?? "")))));
  }));
}

const MANY = 5;
/**
 * A table. columns: [{ title, unit, number, cell: row => Node or text, wide, sort }]; `wide` columns are left out
 * on a phone, `sort` is how the rows are ordered by this one. Options: caption, total (a last row of cells), selected: row => bool.
 */
export function table(columns, rows, options = {}) {
  const kind = column => [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
  const heads = columns.map(column => el("th", { scope: "col", class: kind(column), "aria-sort": column.sort ?? null }, column.title,
    column.unit ? el("span", { class: "unit" }, `, ${column.unit}`) : null));
  const lines = rows.map(row => el("tr", { "aria-selected": options.selected?.(row) ? "true" : null },
    columns.map(column => el("td", { class: kind(column) }, column.cell(row) ?? "–"))));
  if (options.total) lines.push(el("tr", { class: "total" },
    columns.map((column, number) => el("td", { class: kind(column) }, options.total[number] ?? ""))));
  const name = options.caption ?? options.label ?? "table";
  const drawn = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": name },
    el("table", { class: columns.length > MANY ? "many" : null, "aria-label": name }, el("thead", null, el("tr", null, heads)), el("tbody", null, lines)));
  return options.caption ? el("div", null, el("p", { class: "caption" }, options.caption), drawn) : drawn;  // it does not scroll away
}

/** A bar of a share from 0 to 1 in an owner's colour, with a mark where it was expected. */
export function bar(share, owner, mark = null, most = 1) {
  const percent = value => `${Math.min(100, 100 * value / (most || 1))}%`;
  return el("div", { class: "bar", "aria-hidden": "true" }, el("i", { class: owner, style: { width: percent(share) } }),
    mark === null || mark === undefined ? null : el("b", { style: { left: percent(mark) } }));
}

export function swatch(owner) {
  return el("span", { class: `swatch ${owner}`, "aria-hidden": "true" });
}

/** A word of a command, in quotes where a shell would read more into it. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** A command to copy. */
export function command(text) {
  const button = el("button", { class: "button", type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return el("div", { class: "command" }, el("pre", { tabindex: "0" }, text), button);
}

/** What could not be read, each with its reason. */
export function leftOut(texts) {
  return texts?.length ? el("ul", { class: "quiet small" }, texts.map(text => el("li", null, words(text)))) : null;
}

/** What a page shows that has nothing to show: what to run. */
export function empty(state) {
  return el("div", { class: "empty" }, el("p", null, words(state.text)), state.commands.map(command));
}

/** What an answer waits for that is not there yet. */
export function workingLine(working) {
  const seconds = working.seconds ? `, ${Math.round(working.seconds)} s` : "";
  return el("p", { class: "quiet working", role: "status" }, `${working.progress || "waiting for its turn"}${seconds}`);
}

export function section(title, ...children) {
  return el("section", null, title ? el("h2", null, title) : null, ...children);
}

/** The head of a page: its title, and controls at the right. */
export function heading(title, ...controls) {
  const shown = controls.filter(Boolean);
  return el("div", { class: "head" }, el("h1", null, title), shown.length ? el("div", { class: "row" }, ...shown) : null);
}

let sayTimer = 0;
/** A short message at the foot of the page, read aloud by screen readers. */
export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(sayTimer);
  sayTimer = setTimeout(() => { place.textContent = ""; }, 6000);
}
