// Calls to the controller: the token of the caller, and the age of the data.
//
//   every(path, ms, use) ─► one call at a time ─► use(reply)       failures add to the age
//   listen(use, fail)    ─► a long poll, without end
//   unauthenticated ─► a dialog asks for the token once; it is stored for this tab only

const KEY = "sluice-token";
const TIME_LIMIT_MS = 15_000;

let token = sessionStorage.getItem(KEY);
let asking = null;
let heard = performance.now();
let trouble = "";

/** The codes of docs/CONTROLLER.md that mean that the controller, and not this call, is at fault. */
const TROUBLES = [
  "unreachable", "unknown", "not_leader", "no_leader", "internal", "store_failed", "overloaded", "contended",
  "shutting_down",
];

/**
 * A refusal or a failed call; `code` is unreachable if there was no reply. `refusal` says what would fit if it is a
 * reservation's.
 */
export class Refused extends Error {
  constructor(code, message, refusal = null) {
    super(message);
    Object.assign(this, { code, refusal });
  }
}

/** The seconds since the last reply of the controller, the current error, and whether a token is awaited. */
export function age() {
  return { seconds: (performance.now() - heard) / 1000, trouble, asks: asking !== null };
}

/** Makes one call; returns the JSON of the reply. */
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
      throw failed(new Refused("unreachable", "the controller does not reply"));
    }
    const answer = await response.json().catch(() => ({}));
    if (response.ok) {
      heard = performance.now();
      trouble = "";
      return answer;
    }
    const message = answer.message || `status ${response.status}`;
    const refusal = new Refused(answer.code || "unknown", message, answer.refusal);
    if (refusal.code !== "unauthenticated") throw failed(refusal);
    // Another call may have got a new token in the meantime.
    if (token === shown) await askForToken(shown ? refusal.message : "");
  }
}

function failed(refusal) {
  if (TROUBLES.includes(refusal.code)) trouble = refusal.message;
  return refusal;
}

/**
 * Calls repeatedly, `ms` after the last reply; `use` gets the reply and the time of its call. Pauses while the page is
 * hidden. `path` is a function if it changes.
 */
export async function every(path, ms, use, fail = () => {}) {
  for (;;) {
    if (!document.hidden) {
      const asked = performance.now();
      try {
        use(await call("GET", typeof path === "function" ? path() : path), asked);
      } catch (refusal) {
        fail(refusal);
        // The rights of a caller rarely change: wait longer.
        if (refusal.code === "permission_denied") await pause(30_000);
      }
    }
    await pause(ms);
  }
}

/** Receives events: `use` gets new ones, `fail` gets the refusal if this caller may not see them. */
export async function listen(use, fail) {
  let since = null;
  for (;;) {
    try {
      const wait = since === null ? "" : `?since=${since}&wait=25s`;
      const page = await call("GET", `/v1/events${wait}`, undefined, 40_000);
      since = page.next;
      if (page.events.length) use(page.events);
    } catch (refusal) {
      if (refusal.code === "permission_denied") return fail(refusal);
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
