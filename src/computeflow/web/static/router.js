// Addresses to pages, without loading the shell again.

let handler = () => {};

export function onNavigate(handle) { handler = handle; }

export function navigate(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  handler(replace);
}

/** The page of an address, and the parts of it: pages are those of /session. */
export function match(pages, path) {
  for (const page of pages) {
    const found = new RegExp(page.pattern).exec(path);
    if (found) return { page, parts: found.slice(1).map(decodeURIComponent) };
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

addEventListener("popstate", () => handler(false));
addEventListener("click", event => {
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") || link.hash) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
});
