// Asking the controller: what a caller shows, and how old what is known is.
//
//   every(path, ms, use) ─► one call at a time ─► use(answer)      failures count as age
//   listen(path, use)    ─► a long poll, for ever
//   401 ─► the token is asked for once, kept for this tab only

const KEY = "sluice-token";
const TIME_LIMIT_MS = 15_000;

let token = sessionStorage.getItem(KEY);
let asking = null;
let heard = performance.now();
let trouble = "";

/** A refusal or a failed call; `status` is 0 where there was no answer. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** How long ago the controller answered last, in seconds, why it does not now, and whether a token is awaited. */
export function age() {
  return { seconds: (performance.now() - heard) / 1000, trouble, asks: asking !== null };
}

/** One call; the answer's JSON. */
export async function call(method, path, body, limit = TIME_LIMIT_MS) {
  for (;;) {
    const shown = token;
    const headers = { accept: "application/json" };
    if (shown) headers.authorization = `Bearer ${shown}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      const options = { method, headers, signal: AbortSignal.timeout(limit), cache: "no-store" };
      if (body !== undefined) options.body = JSON.stringify(body);
      response = await fetch(path, options);
    } catch {
      throw failed(new Refused(0, "the controller does not answer"));
    }
    const answer = await response.json().catch(() => ({}));
    if (response.ok) {
      heard = performance.now();
      trouble = "";
      return answer;
    }
    const refusal = new Refused(response.status, answer.message || `status ${response.status}`);
    if (response.status !== 401) throw failed(refusal);
    // Somebody else may have given a new one meanwhile.
    if (token === shown) await askForToken(shown ? refusal.message : "");
  }
}

function failed(refusal) {
  if (refusal.status === 0 || refusal.status >= 500 || refusal.status === 421) trouble = refusal.message;
  return refusal;
}

/** Calls again and again, `ms` after the last answer; `use` hears it and when it was asked. Not while nobody looks at the page. */
export async function every(path, ms, use, fail = () => {}) {
  for (;;) {
    if (!document.hidden) {
      const asked = performance.now();
      try {
        use(await call("GET", path), asked);
      } catch (refusal) {
        fail(refusal);
        // What is not for this caller does not become so in a moment.
        if (refusal.status === 403) await pause(30_000);
      }
    }
    await pause(ms);
  }
}

/** Events as they come: `use` hears those after the last it heard, `fail` that they are not for this caller. */
export async function listen(use, fail) {
  let since = null;
  for (;;) {
    try {
      const wait = since === null ? "" : `?since=${since}&wait=25s`;
      const page = await call("GET", `/v1/events${wait}`, undefined, 40_000);
      since = page.next;
      if (page.events.length) use(page.events);
    } catch (refusal) {
      if (refusal.status === 403) return fail(refusal);
      await pause(5_000);
    }
  }
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function askForToken(message) {
  asking ??= new Promise((done) => {
    const dialog = document.getElementById("token-dialog");
    const form = document.getElementById("token-form");
    document.getElementById("token-error").textContent = message;
    form.elements.token.value = "";
    dialog.addEventListener("close", () => {
      token = form.elements.token.value.trim() || token;
      if (token) sessionStorage.setItem(KEY, token);
      form.elements.token.value = "";
      asking = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
