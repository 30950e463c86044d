// Addresses to pages, without loading the shell again.

const SCROLL_MS = 100;

let handler = () => {};
let shown = "";
let timer = 0;

/** `handle({ quietly, scroll })` is called for every other address: quietly where it is the same page with other
 * choices, with the place on it where the reader was there before. */
export function onNavigate(handle) {
  handler = handle;
  shown = here();
}

const here = () => location.pathname + location.search;

function go(how) {
  shown = here();
  return handler(how);
}

/** To another address. `quietly`: the reader stays where they are on the page; a `replace`d address is not in the history. */
export function navigate(address, { replace = false, quietly = replace } = {}) {
  if (replace) keepAddress(address);
  else {
    history.replaceState({ ...history.state, scroll: scrollY }, "");
    history.pushState(null, "", address);
  }
  return go({ quietly });
}

/** Another address for the page that is shown. */
export function keepAddress(address) {
  history.replaceState(history.state, "", address);
  shown = here();
}

/** Where on the page the reader was, of an address in the history. */
export const keptScroll = () => history.state?.scroll ?? 0;

/** A part of an address as text; as it is where its escapes are none. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The page of an address, and the parts of it: pages are those of /session. */
export function match(pages, path) {
  for (const page of pages) {
    const found = new RegExp(page.pattern).exec(path);
    if (found) return { page, parts: found.slice(1).map(decoded) };
  }
  return null;
}

/** The present address with other values in its query; null takes one away. */
export function withQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : "");
}

history.scrollRestoration = "manual";  // the browser would restore it before anything is drawn
addEventListener("scroll", () => {
  clearTimeout(timer);
  const page = shown;
  timer = setTimeout(() => { if (page === here()) history.replaceState({ ...history.state, scroll: scrollY }, ""); }, SCROLL_MS);
}, { passive: true });
addEventListener("popstate", () => { if (here() !== shown) go({ quietly: false, scroll: keptScroll() }); });
addEventListener("click", event => {
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") || link.hash) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
});
