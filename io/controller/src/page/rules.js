// The rules with what they do, and starting, changing and stopping them.

import { call } from "/page/source.js";
import { Table } from "/page/table.js";
import { count, perSecond, rate } from "/page/text.js";

const dialog = document.getElementById("rule-dialog");
const form = document.getElementById("rule-form");
const error = document.getElementById("rule-error");
const KEYS = ["match", "per", "weight", "limit", "reserve"];

let rules = null;
let editing = null;

const limit = (rule) => rule.limits.map((one) => one.rate).join(", ");

/** The part of its first limit that a rule uses, over all its classes where it has but one. */
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

function buttons(rule) {
  const both = document.createElement("span");
  for (const [text, act] of [["Change…", () => open(rule)], ["Stop", () => stop(rule)]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", `${text.replace("…", "")} rule ${rule.name}`);
    button.addEventListener("click", act);
    both.append(button, " ");
  }
  return both;
}

const table = new Table(document.getElementById("rule-rows"), [
  { key: "name", title: "Rule", class: "name", cell: (rule) => rule.name },
  { key: "match", title: "Match", class: "name", cell: (rule) => rule.match },
  { key: "weight", title: "Weight", number: true, cell: (rule) => String(rule.weight) },
  { key: "limit", title: "Limit of each", cell: (rule) => limit(rule) || "none" },
  {
    key: "actual", title: "Actual, all", number: true,
    cell: (rule) => {
      if (!rule.use) return "–";
      const bytes = rate(rule.use.read + rule.use.written, "bytes");
      return `${bytes} ${rate(rule.use.ops, "ops")}`;
    },
  },
  { key: "bar", title: "Of its limit", cell: bar, same: (rule) => part(rule)?.toFixed(2) ?? "none" },
  { key: "classes", title: "Classes", number: true, cell: (rule) => count(rule.use?.classes ?? 0) },
  { key: "waiting", title: "Waiting", number: true, cell: (rule) => count(rule.use?.queued ?? 0) },
  { key: "edit", title: "", cell: buttons, same: (rule) => JSON.stringify({ ...rule, use: null }) },
], { most: 500 });

/** Takes the rules in force in, and what is under way of each. */
export function show(answer, uses) {
  rules = answer;
  const rows = answer.rules.map((rule) => ({ ...rule, use: uses?.get(rule.name) }));
  if (!answer.rules.some((rule) => rule.name === "default")) {
    const use = uses?.get("default");
    rows.push({ name: "default", match: "what no rule takes", weight: 1, limits: [], use });
  }
  table.show(rows, (rule) => rule.name);
}

function open(rule) {
  editing = rule;
  const fields = form.elements;
  document.getElementById("rule-dialog-title").textContent = rule ? `Rule ${rule.name}` : "Start a rule";
  fields.name.value = rule?.name ?? "";
  fields.name.readOnly = Boolean(rule);
  fields.match.value = rule?.match ?? "";
  fields.per.value = rule?.per?.join(", ") ?? "";
  fields.weight.value = rule?.weight ?? "";
  fields.limit.value = rule ? limit(rule) : "";
  fields.reserve.value = rule?.reserve ?? "";
  document.getElementById("rule-rank").hidden = Boolean(rule);
  const names = (rules?.rules ?? []).map((one) => new Option(one.name, one.name));
  fields.before.replaceChildren(...names, new Option("none: behind all", ""));
  error.textContent = "";
  dialog.showModal();
}

async function stop(rule) {
  if (!confirm(`Stop rule ${rule.name}? Its requests go to the rules behind it.`)) return;
  await edit({ action: "stop", name: rule.name }).catch((refusal) => alert(refusal.message));
}

async function edit(change) {
  rules = await call("POST", "/v1/rules/edits", change);
  show(rules);
}

/** Only what was changed is said, so that what the form cannot show stays. */
function change() {
  const fields = form.elements;
  const before = editing && {
    match: editing.match, per: editing.per?.join(", ") ?? "", weight: String(editing.weight),
    limit: limit(editing), reserve: editing.reserve ?? "",
  };
  const keys = {};
  for (const key of KEYS) {
    const value = fields[key].value.trim();
    if (before ? value !== before[key] : value) keys[key] = value || "none";
  }
  if (editing) return { action: "change", name: editing.name, keys };
  const before_ = fields.before.value;
  return { action: "start", name: fields.name.value, keys, place: before_ ? { before: before_ } : "last" };
}

form.addEventListener("submit", async (event) => {
  if (event.submitter?.value !== "save") return;
  event.preventDefault();
  try {
    await edit(change());
    dialog.close();
  } catch (refusal) {
    error.textContent = refusal.message;
  }
});
document.getElementById("rule-new").addEventListener("click", () => open(null));
