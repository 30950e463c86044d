// The shell: menu, theme, who looks; loads the module of the page that the address names.
//
// A page's module exports `render(content, context)`, which gives the nodes of the page, and may export
// `address(context)`, the address whose JSON it shows (by default its own). It is called again when the
// content changes; what a reader opened or chose lies in the address or in `context.state`. `context.signal` is
// aborted once the reader leaves the page. `head(content, context)` may give what stands above a page that is
// empty, and `name(content)` what the browser's tab is named after: by default the run.

import { get, getWhenMade, live, post } from "./api.js";
import { el, empty, heading, leftOut, say, words, workingLine } from "./dom.js";
import { drawNow } from "./fitted.js";
import { isInUse, redraw } from "./redraw.js";
import { keptScroll, match, navigate, onNavigate } from "./router.js";

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));

const place = document.getElementById("content");
let session = null;
let stop = () => {};
let leaving = new AbortController();
let turn = 0;
let liveMark = null;
let following = null, told = null;
let shown = null;
let waiting = null;

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
    ? el("button", { class: "button plain", type: "button", "aria-haspopup": "dialog", on: { click: askWhetherToLeave } }, `${session.name} (operator)`)
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
const isQuiet = heard => !heard || Date.now() / 1000 - heard > QUIET_SECONDS;
const isOver = run => ["ended", "recorded"].includes(run.state) || isQuiet(run.updated);

/** Whether nothing more is expected of what a page shows: of its run, of all runs, or of whatever was last heard. */
function isAllOver(content) {
  const runs = content.run ? [content.run] : content.runs;
  return runs ? runs.every(isOver) : isQuiet(content.last_heard);
}

const LIVE = { on: "live", connecting: "connecting", stale: "the source cannot be read, trying again", lost: "connection lost, trying again", ended: "no longer live: reload" };
const WRONG = ["stale", "lost", "ended"];
const AGAIN_MS = 30_000;
/** Whether the page follows its source; null where it follows nothing. Of a run that goes on no longer nothing
 * is expected: only what is wrong is said, once. */
function markLive(state) {
  following = state;
  liveMark.hidden = state === null || (!WRONG.includes(state) && shown !== null && isAllOver(shown));
  liveMark.className = `live ${state ?? ""}`;
  liveMark.textContent = LIVE[state] ?? "";
  const wrong = WRONG.includes(state) ? state : null;
  if (wrong && wrong !== told) say(`Live updates: ${LIVE[wrong]}.`);
  if (state !== "connecting") told = wrong;
}

setInterval(() => { if (session) markLive(following); }, AGAIN_MS);  // a run may have fallen silent

/** A small window with one thing to do; what goes wrong is said in it. */
function openDialog(title, children, verb, act) {
  const problem = el("p", { class: "error", role: "alert" });
  const dialog = el("dialog", { "aria-label": title },
    el("form", { method: "dialog" }, el("h2", null, title), children, problem,
      el("div", { class: "row" }, el("button", { class: "button main" }, verb),
        el("button", { class: "button", type: "button", on: { click: () => dialog.close() } }, "Cancel"))));
  dialog.querySelector("form").addEventListener("submit", async event => {
    event.preventDefault();
    try {
      await act();
      dialog.close();
    } catch (error) { problem.textContent = error.message; }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function askToken() {
  const token = el("input", { type: "password", name: "token", required: true, autocomplete: "off", id: "token" });
  openDialog("Sign in to act", [
    el("p", { class: "quiet small" }, "Your name, which belongs to the token, is kept with what you approve, dismiss or undo."),
    el("label", { for: "token" }, "Operator token"), token,
  ], "Sign in", async () => {
    await post("/session", { token: token.value });
    await begin();
  });
}

function askWhetherToLeave() {
  openDialog(`Signed in as ${session.name}`, el("p", null, "After signing out, this browser needs a token again, to look as well as to act."), "Sign out", async () => {
    await post("/session/end");
    turn += 1;
    leavePage();
    session = null;
    document.getElementById("head").replaceChildren(el("span", { class: "brand" }, "ComputeFlow"));
    place.replaceChildren(el("h1", null, "Signed out"), el("p", null, "Open the address that ", el("code", null, "computeflow serve"), " printed to look again."));
  });
}

function markMenu(page) {
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.pathname === page?.under;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({ block: "nearest", inline: "center" });
  }
}

/** Draw a page, or draw it again: then what the reader has in hand stays. */
function draw({ module, page, content, context }, again = true) {
  const nodes = content.empty ? [module.head?.(content, context) ?? heading(content.title), empty(content.empty)] : [module.render(content, context)].flat();
  nodes.push(...[leftOut(content.left_out)].filter(Boolean));
  if (again) redraw(place, nodes);
  else {
    place.replaceChildren(...nodes);
    drawNow();
  }
  place.removeAttribute("aria-busy");
  shown = content;
  const name = module.name?.(content) ?? (module.address || content.title === page.title ? content.run?.name : content.title);
  document.title = [name, page.title, "ComputeFlow"].filter(Boolean).join(" · ");
}

const PATIENCE_MS = 200;
/** An update waits while the reader has something in hand. */
function drawLater(drawing) {
  const first = waiting === null;
  waiting = drawing;
  if (first) drawWaiting();
}

function drawWaiting() {
  if (waiting?.mine !== turn) waiting = null;
  if (waiting === null) return;
  if (isInUse(place)) {
    setTimeout(drawWaiting, PATIENCE_MS);
    return;
  }
  const drawing = waiting;
  waiting = null;
  try {
    draw(drawing);
  } catch (error) {
    drawProblem(drawing.page, error);
    throw error;
  }
}

function leavePage() {
  leaving.abort();
  leaving = new AbortController();
  stop();
  stop = () => {};
  waiting = null;
  markLive(null);
}

/** What went wrong, in place of the page, and a way on. */
function drawProblem(page, error) {
  const back = page.under !== location.pathname || location.search ? session.pages.find(each => each.address === page.under) : null;
  place.removeAttribute("aria-busy");
  place.replaceChildren(el("h1", null, page.title), el("p", { class: "error", role: "alert" }, words(error.message)),
    el("div", { class: "row" }, el("button", { class: "button", type: "button", on: { click: () => show({ quietly: true }) } }, "Try again"),
      back ? el("a", { href: back.address }, back.title) : null));
  document.title = `${page.title} · ComputeFlow`;
}

/** How far a page is that takes long; a page that is shown with other choices stays below it. */
function drawWorking(page, working, quietly) {
  const line = workingLine(working), before = place.querySelector(":scope > .working");
  if (before) before.replaceWith(line);
  else if (quietly && place.children.length) place.prepend(line);
  else place.replaceChildren(el("h1", null, page.title), line);
}

async function load(script) {
  try {
    return await import(`./pages/${script}.js`);
  } catch (error) {
    await get("/session");  // says that the server does not answer, where that is why
    throw error;
  }
}

async function show({ quietly, scroll = 0 }) {
  if (!session) return;  // signed out
  const mine = ++turn;
  leavePage();
  const path = location.pathname === "/" ? "/flow" : location.pathname;
  const found = match(session.pages, path);
  markMenu(found?.page);
  if (!found) {
    document.title = "No such page · ComputeFlow";
    return place.replaceChildren(el("h1", null, "No such page"), el("p", null, el("a", { href: "/flow" }, "Flow")));
  }
  place.setAttribute("aria-busy", "true");
  const context = { parts: found.parts, query: new URLSearchParams(location.search), session, state: {}, signal: leaving.signal, navigate, signIn: askToken, refresh: () => show({ quietly: true }) };
  try {
    const progress = working => { if (mine === turn) drawWorking(found.page, working, quietly); };
    const ask = address => getWhenMade(address, context.signal, progress);
    const own = path + location.search, early = found.page.live ? ask(own) : null;  // beside its module
    early?.catch(() => {});  // said below
    const module = await load(found.page.script);
    const address = module.address?.(context) ?? own;
    const { content, tag } = await (early ?? ask(address));
    if (mine !== turn) return;
    const drawing = { module, page: found.page, context, mine };
    draw({ ...drawing, content }, quietly);
    if (!quietly) { scrollTo({ top: scroll, behavior: "instant" }); place.focus({ preventScroll: true }); }
    if (module.live === false) return;
    markLive("connecting");
    stop = live(address, tag, changed => {
      if (mine !== turn) return;
      drawLater({ ...drawing, content: changed });
      markLive("on");
    }, state => { if (mine === turn) markLive(state); });
  } catch (error) {
    if (mine !== turn) return;
    drawProblem(found.page, error);
    if (error.status === undefined) throw error;
  }
}

async function begin() {
  session = (await get("/session")).content;
  drawHead();
  onNavigate(show);
  await show({ quietly: true });
  scrollTo({ top: keptScroll(), behavior: "instant" });
}

begin();
