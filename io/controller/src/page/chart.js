// The two pictures: service stacked over time, and the heat map of targets.

const WINDOW = 150;
const SHOWN = 8;
/** The names that are kept per sample; all others are summed up. */
const KEPT = 40;
/** Below the picture, for the times. */
export const FOOT = 16;
const HUES = [211, 28, 145, 340, 265, 55, 180, 5];

export const hue = (at) => `hsl(${HUES[at % HUES.length]} 65% ${matchMedia("(prefers-color-scheme: dark)").matches ? 62 : 45}%)`;

/** The service of the last five minutes, the greatest by name and the others together. */
export class Stack {
  #points = [];
  #colours = new Map();

  constructor(canvas, legend, format) {
    Object.assign(this, { canvas, legend, format });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** Drops samples of another grouping or unit. */
  clear() {
    this.#points = [];
    this.#colours.clear();
  }

  /** Takes the rows of one sample: pairs of name and amount. */
  push(rows) {
    const own = rows.filter(([, amount]) => amount > 0).sort((a, b) => b[1] - a[1]);
    const all = own.reduce((sum, [, amount]) => sum + amount, 0);
    this.#points.push({ own: new Map(own.slice(0, KEPT)), all });
    if (this.#points.length > WINDOW) this.#points.shift();
    this.draw();
  }

  draw() {
    const pen = fitted(this.canvas);
    const { width, height } = this.canvas.getBoundingClientRect();
    const names = this.#greatest();
    const layers = this.#points.map((point) => {
      const own = names.map((name) => point.own.get(name) ?? 0);
      return [...own, Math.max(0, point.all - own.reduce((sum, amount) => sum + amount, 0))];
    });
    const most = Math.max(1e-9, ...this.#points.map((point) => point.all));
    const foot = height - FOOT;
    const x = (at) => width - ((layers.length - 1 - at) / (WINDOW - 1)) * width;
    const y = (value) => foot - (value / most) * (foot - 18);
    const base = layers.map(() => 0);
    for (let layer = 0; layer <= names.length; layer += 1) {
      pen.fillStyle = layer < names.length ? this.#colour(names[layer]) : "hsl(210 8% 60%)";
      pen.beginPath();
      layers.forEach((point, at) => pen.lineTo(x(at), y(base[at] + point[layer])));
      for (let at = layers.length - 1; at >= 0; at -= 1) {
        pen.lineTo(x(at), y(base[at]));
        base[at] += layers[at][layer];
      }
      pen.fill();
    }
    pen.fillStyle = getComputedStyle(this.canvas).color;
    pen.font = "12px system-ui";
    pen.fillText(layers.length ? this.format(most) : "", 2, 12);
    ends(pen, width, height, "5 min ago", "now");
    this.#describe(names, layers.at(-1) ?? []);
  }

  /** The names with the greatest sums in the chart. */
  #greatest() {
    const sums = new Map();
    for (const { own } of this.#points) for (const [name, amount] of own) sums.set(name, (sums.get(name) ?? 0) + amount);
    const greatest = [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, SHOWN);
    return greatest.map(([name]) => name);
  }

  /** Returns the colour of a name, which it keeps while it is known. */
  #colour(name) {
    if (!this.#colours.has(name)) this.#colours.set(name, this.#colours.size);
    return hue(this.#colours.get(name));
  }

  #describe(names, last) {
    const items = names.map((name, at) => [this.#colour(name), `${name} ${this.format(last[at] ?? 0)}`]);
    if (last.at(-1) > 0) items.push(["hsl(210 8% 60%)", `others ${this.format(last.at(-1))}`]);
    this.legend.replaceChildren(...items.map(([colour, text]) => {
      const item = document.createElement("li");
      const mark = document.createElement("i");
      mark.style.background = colour;
      item.append(mark, text);
      return item;
    }));
    this.canvas.setAttribute("aria-label", items.length ? items.map(([, text]) => text).join(", ") : "no data yet");
  }
}

/** The slots in use of targets, a row for each. */
export class Heat {
  #rows = new Map();

  constructor(canvas) {
    this.canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  push(targets) {
    for (const target of targets) {
      const name = `${target.proxy} ${target.target}`;
      if (!this.#rows.has(name)) this.#rows.set(name, []);
    }
    const now = new Map(targets.map((target) => [`${target.proxy} ${target.target}`, target]));
    for (const [name, cells] of this.#rows) {
      cells.push(now.get(name) ?? null);
      if (cells.length > WINDOW) cells.shift();
      if (cells.every((cell) => cell === null)) this.#rows.delete(name);
    }
    this.draw();
  }

  draw() {
    const names = [...this.#rows.keys()].sort();
    // Hundreds of proxies still fit on one screen.
    const high = names.length <= 40 ? 16 : Math.max(2, Math.floor(640 / names.length));
    this.canvas.height = Math.max(1, names.length * high);
    this.canvas.style.height = `${Math.max(1, names.length * high)}px`;
    const pen = fitted(this.canvas);
    const { width } = this.canvas.getBoundingClientRect();
    const cell = width / WINDOW;
    const [back, ink] = ["--cell", "--warn"].map((name) => getComputedStyle(this.canvas).getPropertyValue(name));
    names.forEach((name, row) => {
      const cells = this.#rows.get(name);
      cells.forEach((one, at) => {
        if (!one) return;
        const x = width - (cells.length - at) * cell;
        pen.fillStyle = `rgb(${back} / ${0.08 + 0.92 * one.full})`;
        pen.fillRect(x, row * high, Math.ceil(cell), high - 1);
        if (one.queued > 0 && high > 4) {
          pen.fillStyle = ink;
          pen.fillRect(x, (row + 1) * high - 3, Math.ceil(cell), 2);
        }
      });
    });
    this.canvas.setAttribute("aria-label", `${names.length} targets over five minutes`);
  }
}

/**
 * An account's way down from now on if it uses nothing: its entitlement as a broken line, what
 * it had as a curve that ends at `until`.
 */
export function curve(canvas, points, entitlement, until) {
  const pen = fitted(canvas);
  const { width, height } = canvas.getBoundingClientRect();
  const most = Math.max(entitlement * 1.1, ...points, 1);
  const foot = height - FOOT;
  const y = (value) => foot - (value / most) * (foot - 4) - 2;
  const style = getComputedStyle(canvas);
  pen.strokeStyle = pen.fillStyle = style.getPropertyValue("--faint");
  pen.font = "12px system-ui";
  ends(pen, width, height, "now", until);
  pen.setLineDash([4, 4]);
  pen.beginPath();
  pen.moveTo(0, y(entitlement));
  pen.lineTo(width, y(entitlement));
  pen.stroke();
  pen.setLineDash([]);
  pen.strokeStyle = style.getPropertyValue("--mark");
  pen.lineWidth = 2;
  pen.beginPath();
  points.forEach((value, at) => pen.lineTo((at / Math.max(1, points.length - 1)) * width, y(value)));
  pen.stroke();
}

/** Labels the left and the right end. */
export function ends(pen, width, height, left, right) {
  pen.fillText(left, 2, height - 3);
  pen.fillText(right, width - pen.measureText(right).width - 2, height - 3);
}

/** A cleared pen in CSS pixels, sharp on any screen. */
export function fitted(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  return pen;
}
