// The shell: menu, theme, who looks; loads the module of the page that the address names.
//
// A page's module exports `render(content, context)`, which gives the nodes of the page, and may export
// `address(context)`, the address whose JSON it shows (by default its own). It is called again when the
// content changes; what a reader opened or chose lies in the address or in `context.state`. `context.signal` is
// aborted once the reader leaves the page.

import { get, live, post } from "./api.js";
import { el, empty, say } from "./dom.js";
import { match, navigate, onNavigate } from "./router.js";

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));

const place = document.getElementById("content");
let session = null;
let stop = () => {};
let leaving = new AbortController();
let turn = 0;
let liveMark = null;
let over = false;

function theme() {
  return document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function switchTheme() {
  const other = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  localStorage.setItem("theme", other);
  dispatchEvent(new Event("themechange"));
}

function drawHead() {
  const links = session.pages.filter(page => page.menu).map(page => el("a", { href: page.address }, page.title));
  liveMark = el("span", { class: "live", hidden: true });
  const role = session.role === "operator"
    ? el("button", { class: "button plain", type: "button", on: { click: leave } }, `${session.name} (operator)`)
    : session.operators
      ? el("button", { class: "button plain", type: "button", on: { click: askToken } }, "Sign in to act")
      : el("span", { class: "wide" }, "read only");
  const menu = el("nav", { "aria-label": "Pages", on: { scroll: () => markEdges(menu) } }, links);
  new ResizeObserver(() => markEdges(menu)).observe(menu);
  document.getElementById("head").replaceChildren(
    el("a", { class: "brand", href: "/flow" }, "ComputeFlow"),
    menu,
    el("div", { class: "tools" }, liveMark, role,
      el("button", { class: "button plain", type: "button", "aria-label": "Switch between light and dark", on: { click: switchTheme } }, "◐")));
}

/** The menu fades at the sides where more of it is out of sight. */
function markEdges(menu) {
  menu.classList.toggle("before", menu.scrollLeft > 1);
  menu.classList.toggle("after", menu.scrollLeft + menu.clientWidth < menu.scrollWidth - 1);
}

const QUIET_SECONDS = 600;  // steps and readings arrive every few seconds
/** Whether nothing more is expected of a run. */
function isOver(run) {
  return ["ended", "recorded"].includes(run.state) || Date.now() / 1000 - run.updated > QUIET_SECONDS;
}

const LIVE = { on: "live", connecting: "connecting", lost: "connection lost, trying again", ended: "no longer live: reload" };
/** Whether the page follows its source; null where it follows nothing. Of a run that goes on no longer nothing
 * is expected: only a lost connection is said. */
function markLive(state) {
  liveMark.hidden = state === null || (over && (state === "on" || state === "connecting"));
  liveMark.className = `live ${state ?? ""}`;
  liveMark.textContent = LIVE[state] ?? "";
  if (state === "lost" || state === "ended") say(`Live updates: ${LIVE[state]}.`);
}

function askToken() {
  const token = el("input", { type: "password", name: "token", required: true, autocomplete: "off", id: "token" });
  const problem = el("p", { class: "error", role: "alert" });
  const dialog = el("dialog", { "aria-label": "Sign in to act" },
    el("form", { method: "dialog" }, el("h2", null, "Sign in to act"),
      el("p", { class: "quiet small" }, "Your name, which belongs to the token, is kept with what you approve, dismiss or undo."),
      el("label", { for: "token" }, "Operator token"), token, problem,
      el("div", { class: "row" }, el("button", { class: "button main" }, "Sign in"),
        el("button", { class: "button", type: "button", on: { click: () => dialog.close() } }, "Cancel"))));
  dialog.querySelector("form").addEventListener("submit", async event => {
    event.preventDefault();
    try {
      await post("/session", { token: token.value });
      dialog.close();
      await begin();
    } catch (error) { problem.textContent = error.message; }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function leave() {
  await post("/session/end");
  say("Signed out. Open the address that serve printed to look again.");
}

function markMenu(page) {
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.pathname === page?.under;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({ block: "nearest", inline: "center" });
  }
}

/** Draw, and leave the keyboard's focus and the scroll where they were. */
function draw(module, content, context) {
  const key = document.activeElement?.dataset?.key;
  const nodes = content.empty ? [el("h1", null, content.title), empty(content.empty)] : [module.render(content, context)].flat();
  place.replaceChildren(...nodes);
  place.removeAttribute("aria-busy");
  over = Boolean(content.run) && isOver(content.run);
  document.title = `${content.title} · ComputeFlow`;
  if (key) place.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

async function show(quietly) {
  const mine = ++turn;
  leaving.abort();
  leaving = new AbortController();
  stop();
  stop = () => {};
  markLive(null);
  const path = location.pathname === "/" ? "/flow" : location.pathname;
  const found = match(session.pages, path);
  markMenu(found?.page);
  if (!found) return place.replaceChildren(el("h1", null, "No such page"), el("p", null, el("a", { href: "/flow" }, "Flow")));
  place.setAttribute("aria-busy", "true");
  const context = { parts: found.parts, query: new URLSearchParams(location.search), session, state: {}, signal: leaving.signal, navigate, signIn: askToken, refresh: () => show(true) };
  try {
    const module = await import(`./pages/${found.page.script}.js`);
    const address = module.address?.(context) ?? path + location.search;
    const { content, tag } = await get(address);
    if (mine !== turn) return;
    draw(module, content, context);
    if (!quietly) { scrollTo(0, 0); place.focus({ preventScroll: true }); }
    if (module.live === false) return;
    markLive("connecting");
    stop = live(address, tag, changed => {
      if (mine !== turn) return;
      draw(module, changed, context);
      markLive("on");
    }, state => { if (mine === turn) markLive(state); });
  } catch (error) {
    if (mine !== turn) return;
    place.removeAttribute("aria-busy");
    const back = found.page.under && found.page.under !== path ? session.pages.find(page => page.address === found.page.under) : null;
    place.replaceChildren(el("h1", null, found.page.title), el("p", { class: "error", role: "alert" }, error.message),
      back ? el("p", null, el("a", { href: back.address }, back.title)) : "");
    if (error.status === undefined) throw error;
  }
}

async function begin() {
  session = (await get("/session")).content;
  drawHead();
  onNavigate(show);
  await show(true);
}

begin();
