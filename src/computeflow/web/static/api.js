// JSON of our own addresses, actions, and what changes (server-sent events). Nothing else is asked for.

export class Refused extends Error {
  constructor(status, text, field = "") { super(text); this.status = status; this.field = field; }
}

/** The server does not answer at all. */
export class Unreachable extends Error {
  constructor() { super("The server does not answer. Is `computeflow serve` still running?"); this.status = 0; }
}

async function ask(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable();
  }
}

function jsonAddress(address) {
  const [path, query] = address.split("?");
  return `${path}.json${query ? `?${query}` : ""}`;
}

async function answerOf(response) {
  const text = await response.text();
  let content = null;
  try { content = JSON.parse(text); } catch { /* a refusal in plain text */ }
  if (!response.ok) {
    const wrong = content?.detail?.[0];
    const said = content?.error ?? wrong?.msg ?? text.trim();
    throw new Refused(response.status, said || `${response.status}`, content?.field ?? wrong?.loc?.at(-1));
  }
  return content;
}

/** The content of an address, and its tag. */
export async function get(address, signal, headers = {}) {
  const response = await ask(jsonAddress(address), { headers: { accept: "application/json", ...headers }, signal });
  const content = await answerOf(response);
  return { content, tag: (response.headers.get("etag") ?? "").replaceAll(/W\/|"/g, "") };
}

const AGAIN_MS = 500;
/** The same, however long it takes; `progress(working)` is told how far it is. */
export async function getWhenMade(address, signal, progress = () => {}) {
  for (;;) {
    try {
      const answer = await get(address, signal, { prefer: "wait=1" });
      if (!answer.content.working) return answer;
      progress(answer.content.working);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 429) throw error;
      progress({ progress: error.message, seconds: 0 });
    }
    await new Promise(resolve => setTimeout(resolve, AGAIN_MS));
    if (signal.aborted) throw new DOMException("aborted", "AbortError");
  }
}

/** An action; the header is one that no other site can send. */
export async function post(address, body = {}) {
  return answerOf(await ask(address, {
    method: "POST",
    headers: { "content-type": "application/json", "x-computeflow": "1" },
    body: JSON.stringify(body),
  }));
}

/** Call `changed(content)` whenever an address has other content; `state` is told "on", "stale" (the server cannot
 * read it for now), "lost" (the browser tries again) or "ended". A tab out of sight follows nothing: browsers have
 * six connections to a server, for all of their tabs. */
export function live(address, tag, changed, state = () => {}) {
  let source = null, known = tag;
  const open = () => {
    const query = new URLSearchParams({ of: address });
    if (known) query.append("known", known);
    const mine = source = new EventSource(`/events?${query}`);
    mine.addEventListener("open", () => state("on"));
    mine.addEventListener("error", () => state(mine.readyState === EventSource.CLOSED ? "ended" : "lost"));
    mine.addEventListener("stale", () => state("stale"));
    mine.addEventListener("fresh", () => state("on"));
    mine.addEventListener("page", event => {
      const { content, tag: its } = JSON.parse(event.data);
      known = its;
      changed(content);
    });
  };
  const close = () => { source?.close(); source = null; };
  const follow = () => { if (document.hidden) close(); else if (!source) open(); };
  document.addEventListener("visibilitychange", follow);
  follow();
  return () => { document.removeEventListener("visibilitychange", follow); close(); };
}
