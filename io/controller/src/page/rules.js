// The table of rules with their usage, and the dialogs to start, change and stop rules.

import { sends } from "/page/dialog.js";
import { call } from "/page/source.js";
import { Table } from "/page/table.js";
import { count, perSecond, rate } from "/page/text.js";

const dialog = document.getElementById("rule-dialog");
const form = document.getElementById("rule-form");
const error = document.getElementById("rule-error");
const stopping = document.getElementById("stop-dialog");
const stopError = document.getElementById("stop-error");
const start = document.getElementById("rule-new");
const KEYS = ["match", "per", "weight", "limit", "reservation"];

let rules = null;
let used = null;
let editing = null;
let edited = 0;

const limit = (rule) => rule.limits.map((one) => one.rate).join(", ");

/** The part of its first limit that a rule uses, over all its classes. */
function part(rule) {
  const wanted = rule.limits.length ? perSecond(rule.limits[0].rate) : null;
  if (!wanted || !rule.use) return null;
  const used = wanted.bytes ? rule.use.read + rule.use.written : rule.use.ops;
  return used / (wanted.value * Math.max(1, rule.use.classes ?? 1));
}

function bar(rule) {
  const used = part(rule);
  if (used === null) return document.createTextNode("");
  const outer = document.createElement("span");
  const inner = document.createElement("i");
  outer.className = "bar";
  outer.setAttribute("role", "img");
  outer.setAttribute("aria-label", `${Math.round(used * 100)} % of its limit`);
  inner.style.width = `${Math.min(100, used * 100)}%`;
  if (used > 0.8) inner.className = used > 1.05 ? "over" : "near";
  outer.append(inner);
  return outer;
}

function buttons({ name, builtin }) {
  const both = document.createElement("span");
  for (const [text, act] of builtin ? [] : [["Change…", open], ["Stop…", stop]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", `${text.replace("…", "")} rule ${name}`);
    button.addEventListener("click", () => act(rules.rules.find((rule) => rule.name === name)));
    both.append(button, " ");
  }
  return both;
}

const table = new Table(document.getElementById("rule-rows"), [
  { key: "name", title: "Rule", class: "name", cell: (rule) => rule.name },
  { key: "match", title: "Match", class: "name", cell: (rule) => rule.match },
  { key: "weight", title: "Weight", number: true, cell: (rule) => String(rule.weight) },
  { key: "limit", title: "Limit per class", cell: (rule) => limit(rule) || "none" },
  {
    key: "actual", title: "Actual, total", number: true,
    cell: (rule) => {
      if (!rule.use) return "–";
      const bytes = rate(rule.use.read + rule.use.written, "bytes");
      return `${bytes}, ${rate(rule.use.ops, "ops")}`;
    },
  },
  { key: "bar", title: "Of limit", cell: bar, same: (rule) => part(rule)?.toFixed(2) ?? "" },
  { key: "classes", title: "Classes", number: true, cell: (rule) => count(rule.use?.classes ?? 0) },
  { key: "waiting", title: "Waiting", number: true, cell: (rule) => count(rule.use?.queued ?? 0) },
  { key: "edit", title: "", cell: buttons, same: (rule) => String(Boolean(rule.builtin)) },
], { most: 500 });

/** Shows the rules in force, unless they were requested before the last change made here. */
export function take(answer, asked) {
  if (asked < edited) return;
  rules = answer;
  show();
}

/** Shows the current usage of each rule. */
export function uses(found) {
  used = found;
  if (rules) show();
}

function show() {
  const rows = rules.rules.map((rule) => ({ ...rule, use: used?.get(rule.name) }));
  if (!rules.rules.some((rule) => rule.name === "default")) {
    const use = used?.get("default");
    rows.push({ name: "default", match: "everything else", weight: 1, limits: [], use, builtin: true });
  }
  table.show(rows, (rule) => rule.name);
}

function open(rule) {
  editing = rule;
  const fields = form.elements;
  document.getElementById("rule-dialog-title").textContent = rule ? `Rule ${rule.name}` : "Start rule";
  fields.name.value = rule?.name ?? "";
  fields.name.readOnly = Boolean(rule);
  fields.match.value = rule?.match ?? "";
  fields.per.value = rule?.per?.join(", ") ?? "";
  fields.weight.value = rule?.weight ?? "";
  fields.limit.value = rule ? limit(rule) : "";
  fields.reservation.value = rule?.reservation ?? "";
  document.getElementById("rule-rank").hidden = Boolean(rule);
  const names = (rules?.rules ?? []).map((one) => new Option(one.name, one.name));
  fields.before.replaceChildren(...names, new Option("none: last", ""));
  error.textContent = "";
  dialog.showModal();
}

function stop(rule) {
  editing = rule;
  document.getElementById("stop-title").textContent = `Stop rule ${rule.name}?`;
  stopError.textContent = "";
  stopping.showModal();
}

async function edit(change) {
  rules = await call("POST", "/v1/rules/edits", change);
  edited = performance.now();
  show();
}

/** The change that the form makes: only changed keys, so that keys that the form does not show stay. */
function change() {
  const fields = form.elements;
  const before = editing && {
    match: editing.match, per: editing.per?.join(", ") ?? "", weight: String(editing.weight),
    limit: limit(editing), reservation: editing.reservation ?? "",
  };
  const keys = {};
  for (const key of KEYS) {
    const value = fields[key].value.trim();
    if (before ? value !== before[key] : value) keys[key] = value || "none";
  }
  if (editing) return { action: "change", name: editing.name, keys };
  const before_ = fields.before.value;
  return { action: "start", name: fields.name.value, keys, position: before_ ? { before: before_ } : "last" };
}

sends(dialog, error, "save", () => edit(change()), () => {});
// The button that had the focus was removed with its rule.
sends(stopping, stopError, "stop", () => edit({ action: "stop", name: editing.name }), () => start.focus());
start.addEventListener("click", () => open(null));
