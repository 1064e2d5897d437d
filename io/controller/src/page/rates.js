// Rates from two samples of all proxies.
//
//   live: proxy ─► subjects, classes: counters ─┐ differences by proxy, target and id,
//   live, 2 s later ────────────────────────────┴─► summed by job, user or class

const empty = (name) => ({
  name, read: 0, written: 0, ops: 0, cost: 0, queue: 0, requests: 0, queued: 0, running: 0, throttled: false,
});

/** The rates of each key between two samples, and its current activity. */
export class Rates {
  #before = new Map();

  /** Takes a sample; false if it is the first. */
  take(live) {
    const now = new Map();
    const by = { job: new Map(), user: new Map(), class: new Map() };
    const rules = new Map();
    const targets = [];
    let known = false;
    for (const sample of live.samples) {
      const before = this.#before.get(sample.proxy);
      const life = `${sample.status.pid}`;
      const since = before?.life === life ? before : null;
      known ||= since !== null;
      now.set(sample.proxy, { life, ...this.#proxy(sample, since, by, rules) });
      targets.push(...perTarget(sample));
    }
    this.#before = now;
    Object.assign(this, { by, rules, targets, known });
    return known;
  }

  #proxy(sample, since, by, rules) {
    const subjects = counters(sample.subjects.subjects);
    const classes = counters(sample.classes.classes);
    const lapse = (part) => (sample[part].t_ns - (since?.[`${part}At`] ?? 0)) / 1e9;
    for (const [id, subject] of subjects) {
      const rate = difference(subject.usage, since?.subjects.get(id)?.usage, since ? lapse("subjects") : 0);
      add(by.job, subject.job || "(no job)", rate);
      add(by.user, String(subject.uid), rate);
    }
    for (const [id, own] of classes) {
      const rate = difference(own.usage, since?.classes.get(id)?.usage, since ? lapse("classes") : 0);
      add(by.class, own.key ? `${own.rule} ${own.key}` : own.rule, rate);
      const sum = add(rules, own.rule, rate);
      sum.classes = (sum.classes ?? 0) + 1;
    }
    return {
      subjects, classes, subjectsAt: sample.subjects.t_ns, classesAt: sample.classes.t_ns,
    };
  }
}

/** The figure of a row in a unit. */
export const amount = (row, unit) => (unit === "bytes" ? row.read + row.written : unit === "ops" ? row.ops : row.cost);

const counters = (list) => new Map(list.map((one) => [`${one.target} ${one.id}`, one]));

/** The difference of two samples; a new entry counts from 0, a first sample has none. */
function difference(usage, before = NONE, seconds) {
  return {
    read: per(usage.read_bytes, before.read_bytes, seconds),
    written: per(usage.written_bytes, before.written_bytes, seconds),
    ops: per(usage.ops, before.ops, seconds),
    cost: per(usage.cost_ns, before.cost_ns, seconds) / 1e9,
    queue: per(usage.queue_ns, before.queue_ns, seconds),
    requests: per(usage.requests, before.requests, seconds),
    queued: usage.queued, running: usage.running, throttled: usage.throttled,
  };
}

const NONE = { read_bytes: 0, written_bytes: 0, ops: 0, cost_ns: 0, queue_ns: 0, requests: 0 };
const per = (now, before, seconds) => (seconds > 0 ? Math.max(0, now - before) / seconds : 0);

function add(map, name, rate) {
  let sum = map.get(name);
  if (!sum) map.set(name, (sum = empty(name)));
  // Thousands per sample: looking names up one by one takes four times as long.
  sum.read += rate.read;
  sum.written += rate.written;
  sum.ops += rate.ops;
  sum.cost += rate.cost;
  sum.queue += rate.queue;
  sum.requests += rate.requests;
  sum.queued += rate.queued;
  sum.running += rate.running;
  sum.throttled ||= rate.throttled;
  return sum;
}

/** The slots in use of each target of a proxy. */
function perTarget(sample) {
  return sample.status.targets.map((target) => {
    const own = sample.classes.classes.filter((one) => one.target === target.name);
    const held = own.reduce((sum, one) => sum + one.usage.slots, 0);
    return {
      proxy: sample.proxy, target: target.name, slots: target.slots_max, held, queued: target.queued,
      full: target.slots_max ? Math.min(1, held / target.slots_max) : 0,
    };
  });
}
