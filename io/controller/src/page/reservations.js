// The calendar of reservations, their table, and the dialog that requests one.

import { READS, WRITES, draw, describe } from "/page/calendar.js";
import { sends } from "/page/dialog.js";
import { call } from "/page/source.js";
import { Table } from "/page/table.js";
import { nanos, perSecond, percent, rate, span } from "/page/text.js";

const at = (id) => document.getElementById(id);
const dialog = at("reservation-dialog");
const form = at("reservation-form");
const error = at("reservation-error");
const later = at("reservation-later");
const SHOWN = 16;
const SECOND_NS = 1e9;

// ---- calendar ----

const figures = new Map();

/** The call for the calendar: a quarter of the chosen span back, and all of it ahead. */
export function path() {
  const [now, span] = [Math.floor(Date.now() / 1000), Number(at("calendar-span").value)];
  return `/v1/calendar?from=${now - span / 4}&to=${now + span}`;
}

/** Shows a calendar: a picture of each resource. */
export function takeCalendar(answer) {
  const list = at("calendar");
  const shown = answer.resources.slice(0, SHOWN);
  const kept = new Set(shown.map(name));
  for (const [key, one] of figures) {
    if (!kept.has(key)) {
      one.figure.remove();
      figures.delete(key);
    }
  }
  if (!shown.length) list.textContent = "No proxy has reported a target with a known capacity.";
  else if (!figures.size) list.textContent = "";
  for (const resource of shown) {
    const key = name(resource);
    if (!figures.has(key)) figures.set(key, figure(list));
    const { caption, canvas } = figures.get(key);
    caption.textContent = `${key}: ${describe(resource, answer)}; capacity ${capacity(resource)}${taken(resource)}${late(resource)}`;
    draw(canvas, resource, answer);
  }
  legend(answer.resources.length - shown.length + (answer.omitted ?? 0));
}

const name = (resource) => `${resource.kind} ${resource.name}`;
const taken = ({ rules }) => (rules.length ? `; reserved by rules: ${rules.join(", ")}` : "");

function capacity({ kind, read_per_sec: read, write_per_sec: write }) {
  const unit = kind === "metadata" ? "ops" : "bytes";
  return read === write ? rate(read, unit) : `${rate(read, unit)} of reads or ${rate(write, unit)} of writes`;
}

function figure(list) {
  const element = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.className = "curve";
  element.append(caption, canvas);
  list.append(element);
  return { figure: element, caption, canvas };
}

function legend(left) {
  const items = [[READS(), "promised to reads"], [WRITES(), "promised to writes"], ["var(--text)", "capacity, and what was used"]];
  const lines = items.map(([colour, text]) => {
    const item = document.createElement("li");
    const mark = document.createElement("i");
    mark.style.background = colour;
    item.append(mark, text);
    return item;
  });
  if (left > 0) lines.push(Object.assign(document.createElement("li"), { textContent: `${left} more resources: sluice reserve calendar` }));
  at("calendar-legend").replaceChildren(...lines);
}

// ---- table ----

const time = (ns) => (ns === undefined ? "" : new Date(ns / 1e6).toLocaleString());
/** A start as a text that is sorted as the number is; what waits in the queue is last. */
const start = (row) => String(row.start_ns ?? 9e18).padStart(20, "0");

function state({ state, reduced, ended, late: behind }) {
  if (ended) return `ended: ${ended}`;
  const less = reduced ? `, ${percent(reduced.ppm / 1e6)}: ${reduced.because}` : "";
  return state + less + late({ late: behind });
}

const amount = (wire) => ("bytes" in wire ? rate(wire.bytes, "bytes") : rate(wire.ops, "ops"));

/** What was served less than its rate while requests waited, behind a semicolon. */
function late({ late: rates = [] }) {
  const one = ({ direction, served, reserved, span_ns: ns }) =>
    `; late: ${amount(served)} of ${amount(reserved)}${direction === "all" ? "" : ` ${direction}`} served in the last ${span(ns)} while requests waited`;
  return rates.map(one).join("");
}
const rates = (row) => ["read", "write", "metadata"].filter((key) => row[key]).map((key) => `${amount(row[key])} ${key}`).join(", ");

const table = new Table(at("reservation-rows"), [
  { key: "id", title: "Number", number: true, value: (row) => row.id, cell: number },
  { key: "state", title: "State", class: "why", value: state, cell: state },
  { key: "user", title: "Owner", number: true, value: (row) => row.user, cell: (row) => String(row.user) },
  { key: "job", title: "Job", class: "name", value: (row) => row.job ?? "", cell: (row) => row.job ?? "all" },
  { key: "place", title: "Place", class: "name", value: place, cell: place },
  { key: "rate", title: "Rate", cell: rates },
  { key: "start", title: "Start", value: start, cell: (row) => time(row.start_ns) || "in the queue" },
  { key: "end", title: "End", cell: (row) => time(row.end_ns) },
], { sort: "start", most: 200 });

function number({ id, phase_of: parent }) {
  return parent === undefined ? String(id) : `${id}, phase of ${parent}`;
}

function place({ target, directory }) {
  return directory ?? `target ${target}`;
}

/** Shows the reservations. */
export function take(answer) {
  const left = table.show(answer.reservations, (row) => String(row.id)) + answer.omitted;
  at("reservation-more").textContent = left > 0 ? `${left} more: sluice reserve list` : answer.reservations.length ? "" : "No reservations.";
}

// ---- request ----

/** Shows the form's button to callers that may reserve. */
export function allow(role) {
  at("reservation-new").hidden = !["user", "operate", "admin"].includes(role);
}

/** The request of the form; an error names the field's text. */
function request() {
  const fields = form.elements;
  const text = (key) => fields[key].value.trim();
  const [wanted, duration] = [perSecond(text("rate")), nanos(text("duration"))];
  if (!wanted) throw new Error(`“${text("rate")}” is not a rate such as 500MB/s or 1000ops/s`);
  if (!duration) throw new Error(`“${text("duration")}” is not a length such as 100s or 10min`);
  const body = { duration_ns: duration };
  const value = Math.round(wanted.value);
  if (!wanted.bytes) body.metadata = { ops: value };
  for (const key of wanted.bytes ? ["read", "write"] : []) {
    if ([key, "both"].includes(fields.direction.value)) body[key] = { bytes: value };
  }
  if (fields.start.value) Object.assign(body, { not_before_ns: new Date(fields.start.value) * 1e6, exact: true });
  for (const key of ["job", "export"]) if (text(key)) body[key] = text(key);
  if (text("user")) body.user = Number(text("user"));
  return body;
}

async function reserve() {
  later.hidden = true;
  await call("POST", "/v1/reservations", request());
  take(await call("GET", "/v1/reservations?ended=true"));
}

/** Shows what has the resource, and offers the next start. */
function explain({ refusal }) {
  if (!refusal) return;
  const { taken_by: by, next_start_ns: next } = refusal;
  if (by.length) error.textContent += `; taken by ${by.join(", ")}`;
  if (next === undefined) return;
  // The next whole second: a number of this language does not hold all nanoseconds since 1970.
  const seconds = Math.floor(next / SECOND_NS) + 1;
  later.textContent = `Start at ${new Date(seconds * 1000).toLocaleString()}`;
  later.onclick = () => {
    form.elements.start.value = local(seconds);
    form.requestSubmit(form.querySelector("button.main"));
  };
  later.hidden = false;
}

/** The text of a field of local time. */
function local(seconds) {
  const shifted = new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 19);
}

sends(dialog, error, "reserve", reserve, () => {}, explain);
at("reservation-new").addEventListener("click", () => {
  form.reset();
  error.textContent = "";
  later.hidden = true;
  dialog.showModal();
});
