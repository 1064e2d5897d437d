// A table with rows by key, so that an update touches only changed cells.

/**
 * Columns: { key, title, number, cell(row) → text or node }; rows are sorted by a column. A node is
 * made again where `same(row)` is another text than before.
 */
export class Table {
  #rows = new Map();

  constructor(element, columns, { sort, most = 100 } = {}) {
    Object.assign(this, { element, columns, sort, most, down: true });
    const head = document.createElement("thead");
    const line = head.insertRow();
    this.heads = columns.map((column) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      if (column.number) cell.className = "number";
      if (column.value) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = column.title;
        button.addEventListener("click", () => this.#sortBy(column));
        cell.append(button);
      } else {
        cell.textContent = column.title;
      }
      line.append(cell);
      return cell;
    });
    this.body = document.createElement("tbody");
    element.replaceChildren(head, this.body);
    this.#mark();
  }

  /** Shows these rows, the first `most` of them; `key(row)` identifies a row. */
  show(rows, key) {
    this.last = [rows, key];
    const column = this.columns.find((one) => one.key === this.sort);
    const sorted = column ? [...rows].sort((a, b) => this.#compare(column, a, b, key)) : rows;
    const shown = sorted.slice(0, this.most);
    const kept = new Set(shown.map(key));
    // Before other rows are moved: a moved row loses the keyboard's focus.
    for (const [name, line] of this.#rows) {
      if (!kept.has(name)) {
        line.element.remove();
        this.#rows.delete(name);
      }
    }
    let at = this.body.firstElementChild;
    for (const row of shown) {
      const line = this.#line(key(row));
      this.#fill(line, row);
      if (line.element === at) at = at.nextElementSibling;
      else this.body.insertBefore(line.element, at);
    }
    return sorted.length - shown.length;
  }

  #line(name) {
    let line = this.#rows.get(name);
    if (!line) {
      const element = document.createElement("tr");
      const cells = this.columns.map((column) => {
        const cell = document.createElement("td");
        cell.className = [column.number ? "number" : "", column.class ?? ""].join(" ").trim();
        element.append(cell);
        return cell;
      });
      line = { element, cells, texts: [] };
      this.#rows.set(name, line);
    }
    return line;
  }

  #fill(line, row) {
    this.columns.forEach((column, at) => {
      const text = column.same ? column.same(row) : column.cell(row);
      if (line.texts[at] === text) return;
      line.texts[at] = text;
      line.cells[at].replaceChildren(column.same ? column.cell(row) : text);
      if (column.class === "name") line.cells[at].title = text;
    });
    line.element.classList.toggle("held", Boolean(row.held));
  }

  #compare(column, a, b, key) {
    const [left, right] = [column.value(a), column.value(b)];
    const order = typeof left === "number" ? right - left : left < right ? -1 : left > right ? 1 : 0;
    return (this.down ? order : -order) || (key(a) < key(b) ? -1 : 1);
  }

  #sortBy(column) {
    this.down = this.sort === column.key ? !this.down : true;
    this.sort = column.key;
    this.#mark();
    if (this.last) this.show(...this.last);
  }

  #mark() {
    this.columns.forEach((column, at) => {
      const numeric = column.number;
      if (column.key === this.sort) {
        this.heads[at].setAttribute("aria-sort", this.down === Boolean(numeric) ? "descending" : "ascending");
      } else {
        this.heads[at].removeAttribute("aria-sort");
      }
    });
  }
}
