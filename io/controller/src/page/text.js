// Figures with units; the same units as the commands print.

const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];
const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

const three = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

/** `12.3 MB` */
export function bytes(count) {
  let at = 0;
  while (count >= 999.5 && at < BYTES.length - 1) {
    count /= 1000;
    at += 1;
  }
  return `${at === 0 ? Math.round(count) : three(count)} ${BYTES[at]}`;
}

/** `1.2k` */
export function count(number) {
  if (number < 1000) return String(Math.round(number * 10) / 10);
  return number < 1e6 ? `${three(number / 1e3)}k` : `${three(number / 1e6)}M`;
}

/** `25.2 ms`, from nanoseconds */
export function span(ns) {
  if (ns >= 7200e9) return `${three(ns / 3600e9)} h`;
  if (ns >= 120e9) return `${three(ns / 60e9)} min`;
  const [unit, name] = TIMES.find(([unit]) => ns >= unit) ?? TIMES[3];
  return `${three(ns / unit)} ${name}`;
}

/** `12.3 MB/s`, `1.20 kops/s`, or seconds of the targets per second */
export function rate(value, unit) {
  if (unit === "bytes") return `${bytes(value)}/s`;
  if (unit === "ops") return `${count(value).replace(/(?<=[0-9])(?=[kM]?$)/, " ")}ops/s`;
  return `${three(value)} s/s`;
}

export const percent = (part) => `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;

/** Bytes or operations per second of a limit's text, or null. */
export function perSecond(text) {
  const found = /^([0-9.]+)([kKMGTP]?i?)(B|ops)\/s$/.exec(text.replaceAll(" ", ""));
  if (!found) return null;
  const [, number, prefix, unit] = found;
  const power = "kMGTP".indexOf(prefix[0] === "K" ? "k" : prefix[0] ?? "") + 1;
  return { value: Number(number) * (prefix.endsWith("i") ? 1024 : 1000) ** power, bytes: unit === "B" };
}

const SPANS = { ms: 1e6, s: 1e9, m: 60e9, min: 60e9, h: 3600e9, d: 86400e9, w: 604800e9 };

/** Nanoseconds of a span's text such as `10min`, or null. */
export function nanos(text) {
  const found = /^([0-9]+(?:\.[0-9]+)?)([a-z]+)$/.exec(text.replaceAll(" ", ""));
  const unit = found && SPANS[found[2]];
  return unit ? Math.round(Number(found[1]) * unit) : null;
}

export const clock = (ns) => new Date(ns / 1e6).toLocaleTimeString();
