// The sections of the page, and the intervals at which they are refreshed.

import { Heat, Stack, curve } from "/page/chart.js";
import { Rates, amount } from "/page/rates.js";
import * as report from "/page/report.js";
import * as reservations from "/page/reservations.js";
import * as rules from "/page/rules.js";
import { age, every, listen } from "/page/source.js";
import { Table } from "/page/table.js";
import { bytes, clock, count, percent, rate, span } from "/page/text.js";

const LIVE_MS = 2_000;
const SLOW_MS = 5_000;
const OLD_SECONDS = 7;
const EVENTS_SHOWN = 200;

const at = (id) => document.getElementById(id);
const rates = new Rates();
const unit = () => at("unit").value;
const by = () => at("by").value;
const stack = new Stack(at("stack"), at("stack-legend"), (value) => rate(value, unit()));
const heat = new Heat(at("heat"));
const reasons = new Map();
/** The time of the latest figures; null before the first ones. */
let shown = null;

/** Polls the data of sections of the page, and shows in each section if this caller may not see it. */
function part(ids, path, ms, use) {
  every(path, ms, (answer, asked) => {
    for (const id of ids) refuse(at(id), "");
    use(answer, asked);
  }, (refusal) => {
    if (refusal.code === "permission_denied") for (const id of ids) refuse(at(id), refusal.message);
  });
}

function refuse(section, message) {
  section.classList.toggle("refused", message !== "");
  let note = section.querySelector(".refusal");
  if (!note && message) section.append(note = Object.assign(document.createElement("p"), { className: "refusal" }));
  if (note) note.textContent = message;
}

// ---- current activity ----

const payers = new Table(at("payers"), [
  { key: "name", title: "Name", class: "name", value: (row) => row.name, cell: named, same: (row) => `${by()} ${row.name}` },
  { key: "read", title: "Read", number: true, value: (row) => row.read, cell: (row) => rate(row.read, "bytes") },
  { key: "written", title: "Written", number: true, value: (row) => row.written, cell: (row) => rate(row.written, "bytes") },
  { key: "ops", title: "Operations", number: true, value: (row) => row.ops, cell: (row) => rate(row.ops, "ops") },
  {
    key: "queue", title: "Mean wait", number: true, value: (row) => (row.requests ? row.queue / row.requests : 0),
    cell: (row) => (row.requests ? span(row.queue / row.requests) : "–"),
  },
  { key: "queued", title: "Waiting", number: true, value: (row) => row.queued, cell: (row) => count(row.queued) },
  { key: "why", title: "Delayed by", class: "why", cell: (row) => row.reason },
], { sort: "read", most: 100 });

/** Makes the name of a row; a job's name opens its report. */
function named(row) {
  if (by() !== "job") return row.name;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = row.name;
  button.addEventListener("click", () => report.open(row.name === "(no job)" ? "" : row.name));
  return button;
}

function showPayers() {
  const rows = [...(rates.by?.[by()] ?? new Map()).values()];
  const text = at("find").value.trim().toLowerCase();
  const shown = [];
  for (const row of rows) {
    const reason = (by() === "job" && reasons.get(row.name)) || (row.throttled ? "a limit" : "");
    if (text && !row.name.toLowerCase().includes(text)) continue;
    if (at("held").checked && !reason) continue;
    shown.push({ ...row, reason, held: Boolean(reason) });
  }
  const left = payers.show(shown, (row) => row.name);
  at("payers-more").textContent = left > 0 ? `${left} more; sort or search to show them`
    : rows.length ? "" : "No recent requests.";
}

function showStack() {
  const rows = [...(rates.by?.[by()] ?? new Map()).values()];
  stack.push(rows.map((row) => [row.name, amount(row, unit())]));
}

part(["now", "jobs", "proxies"], "/v1/live", LIVE_MS, (live) => {
  const began = performance.now();
  shown = began;
  at("unanswered").textContent = live.unanswered.length ? `Not included, because these proxies did not reply: ${live.unanswered.join(", ")}.` : "";
  if (rates.take(live)) showStack();
  showPayers();
  heat.push(rates.targets);
  showProxies(live);
  rules.uses(rates.rules);
  performance.measure("update", { start: began });
});

for (const id of ["by", "unit"]) {
  at(id).addEventListener("change", () => {
    stack.clear();
    showPayers();
  });
}
for (const id of ["find", "held"]) at(id).addEventListener("input", showPayers);

// ---- why ----

const limited = (wait) => `${wait.limit.section} ${wait.limit.name}${wait.limit.key ? ` for ${wait.limit.key}` : ""}`;
const CAUSES = {
  limit: (wait) => (wait.limit ? limited(wait) : "a limit"),
  slots: (wait) => `the cap on slots of rule ${wait.rule}`,
  weight: () => "its weight: other classes are served by theirs",
  remote_service: () => "service from other proxies",
  busy: () => "its own load: the target is saturated",
  other: () => "several causes",
};

// Where something is reserved, a proxy has a share of the target's slots.
const divided = (division) => {
  const numbers = division.holders.map((holder) => holder.id);
  const others = division.others ? [`${division.others} others`] : [];
  return `slots divided for reservations (${[...numbers, ...others].join(", ")})`;
};

every("/v1/why", SLOW_MS, (why) => {
  reasons.clear();
  const named = /(?:^| )jobid=(\S+)/;
  const divisions = new Map((why.divisions ?? []).map((one) => [`${one.proxy} ${one.target}`, one]));
  for (const wait of why.waits) {
    const division = ["weight", "busy"].includes(wait.kind) && divisions.get(`${wait.proxy} ${wait.target}`);
    if (!wait.current || (!division && !["limit", "slots"].includes(wait.kind))) continue;
    const job = named.exec(wait.key)?.[1];
    const text = `${division ? divided(division) : CAUSES[wait.kind](wait)}, for ${span(wait.since_ns_ago)}`;
    const jobs = job ? [job] : why.subjects
      .filter((one) => one.delayed > 0 && one.limits.some((limit) => limit.name === wait.limit?.name))
      .map((one) => one.job || "(no job)");
    for (const name of jobs) if (!reasons.has(name)) reasons.set(name, text);
  }
});

// ---- rules ----

part(["rules"], "/v1/rules", SLOW_MS, rules.take);

// ---- reservations ----

part(["reservations"], reservations.path, SLOW_MS, reservations.takeCalendar);
every("/v1/reservations?ended=true", SLOW_MS, reservations.take);

// ---- proxies and targets ----

let standings = new Map();
const proxies = new Table(at("proxy-rows"), [
  { key: "proxy", title: "Proxy", value: (row) => row.proxy, cell: (row) => row.proxy },
  { key: "target", title: "Target", value: (row) => row.target, cell: (row) => row.target },
  { key: "slots", title: "Slots in use", number: true, value: (row) => row.full, cell: (row) => `${row.held} of ${row.slots}` },
  { key: "queued", title: "Waiting", number: true, value: (row) => row.queued, cell: (row) => count(row.queued) },
  { key: "heard", title: "Last report", value: (row) => row.heard, cell: (row) => row.said },
], { sort: "proxy", most: 500 });

every("/v1/proxies", SLOW_MS, (answer) => {
  standings = new Map(answer.proxies.map((one) => [`${one.name} ${one.target}`, one]));
});

function showProxies() {
  const rows = new Map(rates.targets.map((one) => [`${one.proxy} ${one.target}`, { ...one, heard: "now", said: "now" }]));
  for (const [key, one] of standings) {
    const ago = one.last_report_ns_ago;
    const row = rows.get(key) ?? { proxy: one.name, target: one.target, slots: 0, held: 0, queued: 0, full: 0 };
    const said = one.unreachable ? `unreachable for ${span(ago)}; its share is not reassigned` : ago > 5e9 ? `${span(ago)} ago` : "now";
    rows.set(key, { ...row, heard: said, said });
  }
  proxies.show([...rows.values()], (row) => `${row.proxy} ${row.target}`);
}

// ---- fair share ----

const drawn = new Map();

part(["quotas"], "/v1/decays", SLOW_MS, (answer) => {
  const list = at("quota-list");
  if (!answer.decays.length) {
    list.textContent = "The rules have no [[decay]], so no fair share over time is enforced.";
    return;
  }
  const figures = answer.decays.flatMap((policy) => policy.accounts.map((account) => ({ policy, account })));
  if (!figures.length) {
    list.textContent = "No usage that a decay counts.";
    return;
  }
  if (!list.querySelector("figure")) list.textContent = "";
  const kept = new Set();
  for (const { policy, account } of figures.slice(0, 30)) {
    const key = `${policy.name} ${account.subject}`;
    kept.add(key);
    if (!drawn.has(key)) drawn.set(key, quota(list));
    showQuota(drawn.get(key), policy, account, answer.at_ns);
  }
  for (const [key, one] of drawn) {
    if (!kept.has(key)) {
      one.figure.remove();
      drawn.delete(key);
    }
  }
});

function quota(list) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.className = "curve";
  figure.append(caption, canvas);
  list.append(figure);
  return { figure, caption, canvas };
}

function showQuota({ caption, canvas }, policy, account, now) {
  const amountOf = (value) => (policy.resource === "metadata" ? `${count(value)} operations` : bytes(value));
  const held = account.limit ? `, limited to ${limitText(account.limit)}` : "";
  const free = account.until_ns ? `, throttling ends in ${span(Math.max(0, account.until_ns - now))} without usage` : "";
  const part = percent(account.entitlement ? account.used / account.entitlement : 0);
  const text = `${policy.name}, ${account.subject}: ${amountOf(account.used)} of ${amountOf(account.entitlement)} (${part})${held}${free}`;
  caption.textContent = text;
  canvas.setAttribute("aria-label", text);
  const steps = policy.mode === "period";
  curve(canvas, ahead(policy, account, now), account.entitlement, `in ${span(policy.span_ns * (steps ? 1 : 2))}, without usage`);
}

const limitText = (limit) => ("bytes" in limit ? rate(limit.bytes, "bytes") : rate(limit.ops, "ops"));

/** The usage over two half-lives or one period ahead, without further usage; periods end at multiples of their length. */
function ahead(policy, account, now) {
  const steps = 120;
  const over = ((account.until_ns ?? now - (now % policy.span_ns) + policy.span_ns) - now) / policy.span_ns;
  const stepped = (step) => (step / steps < over ? account.used : 0);
  const decayed = (step) => account.used * 2 ** ((-2 * step) / steps);
  return Array.from({ length: steps + 1 }, (_, step) => (policy.mode === "period" ? stepped(step) : decayed(step)));
}

// ---- events ----

listen((events) => {
  const list = at("event-list");
  for (const event of events) {
    const item = document.createElement("li");
    const time = document.createElement("time");
    time.dateTime = new Date(event.at_ns / 1e6).toISOString();
    time.textContent = clock(event.at_ns);
    item.append(time, event.text);
    list.prepend(item);
  }
  while (list.children.length > EVENTS_SHOWN) list.lastElementChild.remove();
}, (refusal) => refuse(at("events"), refusal.message));

// ---- age of the figures ----

every("/v1/status", SLOW_MS, (status) => {
  reservations.allow(status.role);
  const who = status.is_leader ? `leader, term ${status.term}` : "standby";
  at("standing").dataset.text = `${location.host} ${who}; ${status.proxies} proxies`;
});

/** Sets a text if it has changed, so that a screen reader does not repeat it. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

setInterval(() => {
  const { seconds: answered, trouble, asks } = age();
  // A caller that may not see current activity sees the age of the other figures.
  const seconds = shown === null ? answered : (performance.now() - shown) / 1000;
  const old = !asks && (seconds > OLD_SECONDS || trouble !== "");
  const why = trouble || "no reply since then";
  say(at("standing"), `${at("standing").dataset.text ?? ""}${seconds < 3 ? "" : ` · ${Math.round(seconds)} s old`}`);
  say(at("old"), old ? `These figures are ${Math.round(seconds)} s old: ${why}.` : "");
  at("old").hidden = !old;
}, 500);
