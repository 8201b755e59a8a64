// Helpers of the report: elements, numbers, tables. Names from a program only ever become text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}
const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function bytes(size) {
  if (Math.abs(size) < 1024) return `${Math.round(size)} B`;
  let value = size, unit = "";
  for (unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (Math.abs(value) < 1023.5) break;
  }
  const size_ = Math.abs(value);
  return `${value.toFixed(size_ < 9.995 ? 2 : size_ < 99.95 ? 1 : 0)} ${unit}`;
}
function percent(share, signed) {
  const value = share * 100, near = Math.abs(value);
  if (near > 0 && near < 0.005) return "< 0.01 %";
  return `${signed && value >= 0 ? "+" : ""}${value.toFixed(near === 0 ? 0 : near < 0.95 ? 2 : 1)} %`;
}
const count = (n) => n.toLocaleString("en-US");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

// "dir/deep/model.py:42 (make.<locals>.block)" as people say it: the file, its line, the function
function place(source) {
  const at = source.lastIndexOf(" (");
  const where = at > 0 ? source.slice(0, at) : source;
  const file = where.replaceAll("\\", "/").split("/").pop();
  const name = at > 0 ? source.slice(at + 2, -1).split(".<locals>.").pop() : "";
  return file && file + (name && ` (${name})`);
}
const line = (source) => h("span", { class: "mono", title: source }, place(source) || "—");
// What made a value, and in which region.
const made = (op, region) => (region ? [op, h("span", { class: "where" }, ` in region ${region}`)] : op);

function swatch(group) {
  return h("span", { class: "swatch" + (group.hatched ? " hatched" : ""), style: `background-color: var(${group.color})` });
}

// Rows that agree in `names` as one row that counts them and adds up `sums`: equal layers read as one.
function grouped(rows, names, sums) {
  const found = new Map();
  for (const row of rows) {
    const id = JSON.stringify(names.map((name) => row[name])), same = found.get(id);
    if (same) { for (const name of sums) same[name] += row[name]; same.count++; } else found.set(id, { ...row, count: 1 });
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes);
}

// A row of buttons of which one is pressed.
function segments(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === chosen),
    onclick() {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === this));
      choose(value);
    },
  }, text));
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

// A table that sorts by its heads, filters by a word, opens a row's explanation, and shows few rows at first.
// columns: {name, num, wide, sort(row), cell(row), class}; options: {explain(row), words(row), step, first}
function sortable(columns, rows, options) {
  let order = null, down = true, shown = options.step || 50, needle = "", kept = rows;
  const body = h("tbody"), status = h("span", { role: "status" });
  const heads = columns.map((column, i) => h("th", {
    scope: "col", class: [column.num && "num", column.wide && "wide"].filter(Boolean).join(" "), "aria-sort": column.sort ? "none" : null,
  }, column.sort ? h("button", { type: "button", onclick: () => sortBy(i) }, column.name) : h("span", {}, column.name)));
  const more = h("button", { type: "button", class: "quiet", onclick() { shown += 200; draw(); } }, "Show more");

  function sortBy(i) {
    down = order === i ? !down : Boolean(columns[i].num);
    order = i;
    heads.forEach((head, k) => columns[k].sort && head.setAttribute("aria-sort", k !== i ? "none" : down ? "descending" : "ascending"));
    draw();
  }
  function filter(word, keep) {
    needle = word.trim().toLowerCase();
    kept = rows.filter((row) => (!keep || keep(row)) && (!needle || options.words(row).toLowerCase().includes(needle)));
    shown = options.step || 50;
    draw();
  }
  function toggle(row, element) {
    if (element.nextSibling && element.nextSibling.classList.contains("more")) {
      element.nextSibling.remove();
      element.setAttribute("aria-expanded", "false");
    } else {
      element.after(h("tr", { class: "more" }, h("td", { colspan: columns.length }, options.explain(row))));
      element.setAttribute("aria-expanded", "true");
    }
  }
  function draw() {
    let list = kept;
    if (order !== null) {
      const key = columns[order].sort;
      list = [...kept].sort((a, b) => {
        const x = key(a), y = key(b);
        return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
      });
    }
    body.replaceChildren(...list.slice(0, shown).map((row) => {
      const cells = columns.map((column) => h("td", {
        class: [column.num && "num", column.wide && "wide", column.class].filter(Boolean).join(" "),
      }, column.cell(row)));
      if (!options.explain) return h("tr", {}, cells);
      return h("tr", {
        class: "row", tabindex: 0, "aria-expanded": "false",
        onclick() { if (!String(getSelection())) toggle(row, this); },
        onkeydown(event) { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(row, this); } },
      }, cells);
    }));
    status.textContent = list.length === rows.length && shown >= list.length ? plural(list.length, "row")
      : `${count(Math.min(shown, list.length))} of ${plural(list.length, "row")}${list.length < rows.length ? ` (${count(rows.length)} in all)` : ""}`;
    more.hidden = shown >= list.length;
  }
  draw();
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads)), body);
  return { element: [h("div", { class: "scroll" }, table), h("div", { class: "foot" }, status, more)], filter };
}

function section(title, lead, ...children) {
  const element = h("section", {}, h("h2", {}, title), lead && h("p", { class: "lead" }, lead), children);
  document.getElementById("report").append(element);
  return element;
}
