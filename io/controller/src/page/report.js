// A job's report in a dialog: its usage, its delays, and what would make it faster.
//
//   name of a job in the table ─► open(job) ─► GET /v1/report ─► sentences; Escape closes

import { call } from "/page/source.js";
import { bytes, count, percent, rate, span } from "/page/text.js";

const at = (id) => document.getElementById(id);
let asked = 0;

/** Shows the report of a job. */
export async function open(job) {
  const mine = ++asked;
  at("report-title").textContent = job === "" ? "Requests without a job" : `Job ${job}`;
  at("report-lines").replaceChildren(line("p", "loading…"));
  if (!at("report-dialog").open) at("report-dialog").showModal();
  let lines;
  try {
    lines = tell(await call("GET", `/v1/report?job=${encodeURIComponent(job)}`));
  } catch (refusal) {
    lines = [line("p", refusal.message, "error")];
  }
  // Another report may have been opened in the meantime.
  if (mine === asked) at("report-lines").replaceChildren(...lines);
}

function tell(report) {
  const { counters } = report;
  const sentences = [
    `${day(report.from_s)} to ${day(report.to_s)}, ${span(report.active_ns)} with requests.`,
    `It read ${bytes(counters.read_bytes)} and wrote ${bytes(counters.written_bytes)}.`,
    achieved(report),
  ];
  if (counters.delayed > 0) {
    sentences.push(`Limits delayed it for ${ofActiveTime(report, report.delayed_span_ns)}: ${count(counters.delayed)} requests, ${span(counters.delayed_ns / counters.delayed)} each.`);
  }
  for (const cause of report.delay_causes) {
    sentences.push(`${cause.is_limit ? "Delayed by" : "Waited for"} ${cause.what}: ${ofActiveTime(report, cause.span_ns)}.`);
  }
  for (const kind of ["reads", "writes"]) sentences.push(...sizes(kind, counters[kind]));
  const others = report.others.map((other) => `${other.job || "requests without a job"} ${percent(other.traffic_ppm / 1e6)}`);
  sentences.push(others.length === 0 ? "No other job had requests in this time."
    : `It moved ${percent(report.coverage_ppm / 1e6)} of all bytes in this time; others: ${others.join(", ")}.`);
  const told = sentences.map((text) => line("p", text));
  for (const pattern of report.patterns) {
    told.push(line("h4", pattern.name), line("p", `${pattern.what} ${pattern.advice}`));
  }
  return [...told, ...report.caveats.map((caveat) => line("p", caveat, "aside"))];
}

function achieved(report) {
  const inBytes = report.achieved_per_s > 0;
  const unit = inBytes ? "bytes" : "ops";
  const had = inBytes ? report.achieved_per_s : report.achieved_ops_per_s;
  const free = report.undelayed;
  const seen = free ? ` It moved ${rate(inBytes ? free.bytes_per_s : free.ops_per_s, unit)} without limits at ${day(free.at_s)}.` : "";
  return `It achieved ${rate(had, unit)}.${seen}`;
}

// A longer span is not a part of the active time: a cause may have delayed other jobs of the class.
function ofActiveTime(report, nanos) {
  return nanos <= report.active_ns ? `${percent(nanos / report.active_ns)} of its active time (${span(nanos)})` : span(nanos);
}

function sizes(kind, accesses) {
  const names = ["below 4 KiB", "below 64 KiB", "below 1 MiB", "of 1 MiB or more"];
  const all = accesses.sizes.reduce((sum, one) => sum + one, 0);
  if (all === 0) return [];
  const parts = accesses.sizes.map((one, nth) => (one > 0 ? `${percent(one / all)} ${names[nth]}` : ""));
  return [`Of ${count(all)} ${kind} ${parts.filter(Boolean).join(", ")}; ${percent(1 - accesses.random / all)} began where a previous one ended.`];
}

function line(tag, text, kind = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

const day = (seconds) => new Date(seconds * 1000).toLocaleString();
