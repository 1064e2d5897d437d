// The picture of one resource of the calendar.
//
//   1 ────────────────  capacity: reads and writes share it, r/R + w/W; broken: without best effort and the unseen
//   ▒▒▒▒▁▁▁▁│▁▁▇▇▇▁▁▁▁  promised: reads below, writes above; a line: used
//          now

import { FOOT, ends, fitted, hue } from "/page/chart.js";
import { percent } from "/page/text.js";

/** Above the capacity, so that its line shows. */
const TOP = 4;
const DAY_NS = 86_400e9;

export const READS = () => hue(0);
export const WRITES = () => hue(1);

/** The parts of the capacity that a step takes. */
function parts(resource, step) {
  const of = (level, capacity) => (capacity > 0 ? level / capacity : level > 0 ? 1 : 0);
  return [of(step.read_per_sec, resource.read_per_sec), of(step.write_per_sec, resource.write_per_sec)];
}

/** What is promised at a time, as a part of the capacity. */
function promised(resource, at) {
  const step = resource.steps.findLast((one) => one.from_ns <= at);
  return step ? parts(resource, step).reduce((sum, part) => sum + part) : 0;
}

/** Draws a resource within the span of a reply, and describes it. */
export function draw(canvas, resource, answer) {
  const { at_ns: now, from_ns: from, until_ns: until } = answer;
  const pen = fitted(canvas);
  const { width, height } = canvas.getBoundingClientRect();
  const foot = height - FOOT;
  const x = (ns) => ((Math.min(Math.max(ns, from), until) - from) / Math.max(1, until - from)) * width;
  const y = (part) => foot - Math.min(1, part) * (foot - TOP);
  resource.steps.forEach((step, nth) => {
    const [left, right] = [x(step.from_ns), x(resource.steps[nth + 1]?.from_ns ?? until)];
    const [read, write] = parts(resource, step);
    pen.fillStyle = READS();
    pen.fillRect(left, y(read), right - left, foot - y(read));
    pen.fillStyle = WRITES();
    pen.fillRect(left, y(read + write), right - left, y(read) - y(read + write));
  });
  const style = getComputedStyle(canvas);
  const line = (colour, points, dash = []) => {
    pen.strokeStyle = style.getPropertyValue(colour);
    pen.setLineDash(dash);
    pen.beginPath();
    for (const [left, top] of points) pen.lineTo(left, top);
    pen.stroke();
  };
  const level = (part) => [[0, y(part)], [width, y(part)]];
  line("--text", level(1));
  line("--faint", level(1 - (resource.best_effort_ppm + resource.unseen_ppm) / 1e6), [4, 4]);
  const used = resource.used.flatMap((step, nth) => {
    const [read, write] = parts(resource, step);
    const end = resource.used[nth + 1]?.from_ns ?? Math.min(now, until);
    return [[x(step.from_ns), y(read + write)], [x(end), y(read + write)]];
  });
  pen.lineWidth = 2;
  line("--text", used);
  line("--bad", [[x(now), 0], [x(now), foot]]);
  pen.lineWidth = 1;
  pen.setLineDash([]);
  pen.fillStyle = style.getPropertyValue("--faint");
  pen.font = "12px system-ui";
  ends(pen, width, height, moment(from, until - from), moment(until, until - from));
  if (x(now) > width / 8 && x(now) < (width * 7) / 8) pen.fillText("now", x(now) - 10, height - 3);
  canvas.setAttribute("aria-label", describe(resource, answer));
}

/** `14:00:05`, with the date in a long span. */
function moment(ns, span) {
  const at = new Date(ns / 1e6);
  return span > DAY_NS ? at.toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : at.toLocaleTimeString();
}

/** What the picture shows, in words. */
export function describe(resource, { at_ns: now, from_ns: from, until_ns: until }) {
  const last = resource.used.at(-1);
  const used = last ? `, ${percent(parts(resource, last).reduce((sum, part) => sum + part))} used lately` : "";
  const starts = resource.steps.map((step) => step.from_ns).filter((at) => at > now && at < until);
  const most = Math.max(...[Math.max(now, from), ...starts].map((at) => promised(resource, at)));
  return `${percent(promised(resource, now))} promised now, ${percent(most)} at most${used}`;
}
