// Memory over the program's order: strips stacked by group, who is alive at a position.
const ROLES = {
  kept: ["Kept", "made by the forward pass, read after it"],
  recomputed: ["Recomputed", "computed again for the backward pass"],
  forward: ["Forward", "read by the forward pass only"],
  backward: ["Backward", "made by the backward pass"],
  other: ["Other", "inputs prepared, the update"],
};
const PALETTE = ["--g0", "--g1", "--g2", "--g3", "--g4", "--g5", "--g6", "--g7"];

// The compact form of page.py: columns of numbers, words by index.
function unpack(packed) {
  const word = (i) => data.words[i], n = packed.buffers.length / 10;
  const ops = [], buffers = [];
  for (let i = 0; i < packed.ops.length; i += 3) ops.push({ name: word(packed.ops[i]), source: word(packed.ops[i + 1]), phase: word(packed.ops[i + 2]) });
  for (let k = 0; k < n; k++) {
    const [size, first, length, op, value, source, part, role, inside, region] = packed.buffers.slice(10 * k, 10 * k + 10);
    buffers.push({ size, first, last: first + length, op: word(op), value: word(value), source: word(source), part: word(part), role: word(role), inside: Boolean(inside), region: word(region) });
  }
  const totals = new Float64Array(ops.length + 1);
  for (const b of buffers) { totals[b.first] += b.size; totals[b.last + 1] -= b.size; }
  let now = packed.fixed, peak = 0;
  for (let i = 0; i <= ops.length; i++) { now += totals[i]; totals[i] = now; if (i < ops.length && now > totals[peak]) peak = i; }
  return { ...packed, ops, buffers, totals, peak };
}

const KEYS = { role: (b) => b.role, part: (b) => b.part || "(no layer)", source: (b) => place(b.source) || "(no line)" };

// Groups shared by all strips, so that a color means the same in each.
function groupsOf(strips, by) {
  const key = KEYS[by];
  if (by === "role") {
    const used = new Set(strips.flatMap((strip) => strip.buffers.map(key)));
    return Object.keys(ROLES).filter((role) => used.has(role)).map((role) => ({ key: role, name: ROLES[role][0], hint: ROLES[role][1], color: `--${role}`, hatched: role === "recomputed" }));
  }
  const weight = new Map();
  for (const strip of strips) {
    for (const b of strip.buffers) weight.set(key(b), (weight.get(key(b)) || 0) + b.size * (b.last - b.first + 1) / strip.ops.length);
  }
  const ranked = [...weight].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const named = ranked.length > PALETTE.length ? ranked.slice(0, PALETTE.length - 1) : ranked;
  const groups = named.map((name, i) => ({ key: name, name, color: PALETTE[i], hatched: false }));
  if (ranked.length > named.length) groups.push({ key: null, name: `${count(ranked.length - named.length)} more`, color: "--rest", hatched: false });
  return groups;
}

function stack(strip, groups, by) {
  const index = new Map(groups.map((group, i) => [group.key, i])), rest = groups.length - 1, key = KEYS[by];
  const layers = groups.map(() => new Float64Array(strip.ops.length + 1));
  for (const b of strip.buffers) {
    const layer = layers[index.get(key(b)) ?? rest];
    layer[b.first] += b.size;
    layer[b.last + 1] -= b.size;
  }
  for (const layer of layers) for (let i = 1; i < layer.length; i++) layer[i] += layer[i - 1];
  return layers;
}

// Round sizes for an axis: a power of two times a unit, three to six of them.
function ticks(most) {
  let step = 1;
  while (most / step > 6) step *= 2;
  const found = [];
  for (let at = step; at <= most; at += step) found.push(at);
  return found;
}

function hatch(context, base) {
  const tile = document.createElement("canvas"), scale = devicePixelRatio || 1, size = Math.round(7 * scale);
  tile.width = tile.height = size;
  const c = tile.getContext("2d");
  c.fillStyle = base; c.fillRect(0, 0, size, size);
  c.strokeStyle = color("--hatch"); c.lineWidth = 1.8 * scale;
  for (const d of [-size, 0, size]) { c.beginPath(); c.moveTo(d - 1, size + 1); c.lineTo(d + size + 1, -1); c.stroke(); }
  return context.createPattern(tile, "repeat");
}

class Plot {
  constructor(strip, view) {
    Object.assign(this, { strip, view, at: strip.peak });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.svg = s("svg", { "aria-hidden": "true" });
    this.element = h("div", {
      class: "plot", tabindex: 0, role: "slider", "aria-label": `Memory over the program's order, ${strip.title.toLowerCase()}: position`,
      "aria-valuemin": 1, "aria-valuemax": strip.ops.length,
      onpointermove: (e) => e.pointerType !== "touch" && view.look(this, this.position(e), false),
      onpointerdown: (e) => { if (e.pointerType !== "touch") view.look(this, this.position(e), true); },
      onclick: (e) => view.look(this, this.position(e), true),
      onpointerleave: () => view.back(),
      onfocus: () => view.look(this, this.at, true),
      onkeydown: (e) => this.key(e),
    }, this.canvas, this.svg);
  }
  get margins() { return { left: 58, right: 8, top: 20, bottom: 26 }; }
  position(event) {
    const box = this.element.getBoundingClientRect(), m = this.margins;
    const share = (event.clientX - box.left - m.left) / (box.width - m.left - m.right);
    return Math.max(0, Math.min(this.strip.ops.length - 1, Math.floor(share * this.strip.ops.length)));
  }
  key(event) {
    const n = this.strip.ops.length, far = Math.max(2, Math.round(n / 20));
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, ArrowUp: this.at + 1, ArrowDown: this.at - 1, PageDown: this.at + far, PageUp: this.at - far,
      Home: 0, End: n - 1, p: this.strip.peak, P: this.strip.peak }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.view.look(this, Math.max(0, Math.min(n - 1, to)), true);
  }
  x(position) { return this.margins.left + (this.width - this.margins.left - this.margins.right) * position / this.strip.ops.length; }
  y(size) { const m = this.margins; return this.height - m.bottom - (this.height - m.top - m.bottom) * size / this.view.most; }

  draw() {
    const box = this.element.getBoundingClientRect();
    this.width = box.width; this.height = box.height;
    if (!this.width || !this.strip.ops.length) return;
    this.paint();
    this.annotate();
  }
  // One column of pixels shows the fullest of its positions, so that no peak is lost.
  paint() {
    const { strip, view, canvas } = this, scale = devicePixelRatio || 1, n = strip.ops.length, m = this.margins;
    canvas.width = Math.round(this.width * scale); canvas.height = Math.round(this.height * scale);
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    const columns = Math.max(1, Math.min(n, Math.floor((this.width - m.left - m.right) * scale)));
    const pick = Array.from({ length: columns }, (_, x) => {
      let best = Math.floor(x * n / columns);
      for (let i = best + 1; i < Math.floor((x + 1) * n / columns); i++) if (strip.totals[i] > strip.totals[best]) best = i;
      return best;
    });
    const edge = (x) => this.x(x * n / columns);
    const band = (low, high, fill, dim) => {
      c.beginPath();
      c.moveTo(edge(0), this.y(high[0]));
      for (let x = 0; x < columns; x++) { c.lineTo(edge(x), this.y(high[x])); c.lineTo(edge(x + 1), this.y(high[x])); }
      for (let x = columns - 1; x >= 0; x--) { c.lineTo(edge(x + 1), this.y(low[x])); c.lineTo(edge(x), this.y(low[x])); }
      c.closePath();
      c.globalAlpha = dim ? 0.22 : 1;
      c.fillStyle = fill; c.fill();
      // a hairline between bands: they are told apart without their colors
      c.globalAlpha = 1; c.strokeStyle = color("--card"); c.lineWidth = 0.8;
      c.beginPath();
      for (let x = 0; x < columns; x++) { c.lineTo(edge(x), this.y(high[x])); c.lineTo(edge(x + 1), this.y(high[x])); }
      c.stroke();
    };
    let low = new Float64Array(columns), high = low.map(() => strip.fixed);
    band(low, high, color("--fixed"), view.lit !== null && view.lit !== "fixed");
    stack(strip, view.groups, view.by).forEach((layer, g) => {
      const group = view.groups[g], base = color(group.color);
      low = high;
      high = low.map((under, x) => under + layer[pick[x]]);
      band(low, high, group.hatched ? hatch(c, base) : base, view.lit !== null && view.lit !== g);
    });
    // what runs: forward, recomputed, backward
    const ribbon = this.height - m.bottom + 4;
    for (let x = 0; x < columns; x++) {
      const phase = strip.ops[pick[x]].phase;
      c.fillStyle = color(`--${phase}`);
      c.fillRect(edge(x), ribbon, edge(x + 1) - edge(x) + 0.3, 5);
    }
  }
  annotate() {
    const { strip, view, svg } = this, m = this.margins, right = this.width - m.right;
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    const parts = [];
    for (const size of ticks(view.most)) {
      parts.push(s("line", { class: "grid", x1: m.left, x2: right, y1: this.y(size), y2: this.y(size), opacity: .55 }),
        s("text", { x: m.left - 8, y: this.y(size) + 4, "text-anchor": "end" }, bytes(size)));
    }
    parts.push(s("line", { class: "grid", x1: m.left, x2: right, y1: this.y(0), y2: this.y(0) }),
      s("text", { x: m.left - 8, y: this.y(0) + 4, "text-anchor": "end" }, "0"),
      s("text", { x: m.left, y: this.height - 3 }, "first operation"),
      s("text", { x: right, y: this.height - 3, "text-anchor": "end" }, `last of ${count(strip.ops.length)}`));
    const peak = strip.totals[strip.peak], px = this.x(strip.peak + .5), side = px > this.width * .62 ? "end" : "start", dx = side === "end" ? -7 : 7;
    // labels stand where the picture is lower: at its beginning or at its end
    const edge = Math.ceil(strip.ops.length / 4), highest = (list) => list.reduce((a, b) => Math.max(a, b), 0);
    const lower = highest(strip.totals.subarray(0, edge)) <= highest(strip.totals.subarray(strip.ops.length - edge, strip.ops.length));
    const rule = (size, kind, text, under) => {
      if (!size || size > view.most) return;
      const y = this.y(size), left = Math.abs(y - this.y(peak)) < 18 ? px > this.width / 2 : lower;
      parts.push(s("line", { class: kind, x1: m.left, x2: right, y1: y, y2: y }),
        s("text", { class: under ? kind : `halo ${kind}`, x: left ? m.left + 6 : right - 4, y: under ? y + 15 : y - 5, "text-anchor": left ? "start" : "end" }, `${text} ${bytes(size)}`));
    };
    rule(data.budget, "budget", "budget", false);
    rule(data.bound, "bound", "no plan is below", true);
    parts.push(s("path", { d: `M${px - 5},${this.y(peak) - 8}h10l-5,7z`, fill: "currentColor" }),
      s("text", { class: "halo strong", x: px + dx, y: this.y(peak) - 5, "text-anchor": side }, `peak ${bytes(peak)} alive`));
    if (view.active === this) {
      const cx = Math.round(this.x(view.shown + .5)) + .5;
      parts.push(s("line", { class: "cross", x1: cx, x2: cx, y1: m.top - 8, y2: this.height - m.bottom + 9 }),
        s("circle", { cx, cy: this.y(strip.totals[view.shown]), r: 3.5, fill: "currentColor" }));
      if (view.life) parts.push(s("line", { class: "life", x1: this.x(view.life.first), x2: Math.max(this.x(view.life.last + 1), this.x(view.life.first) + 3), y1: this.height - m.bottom + 6.5, y2: this.height - m.bottom + 6.5 }));
    }
    svg.replaceChildren(...parts);
  }
}

class MemoryView {
  constructor(strips) {
    this.strips = strips;
    this.by = "role"; this.lit = null; this.life = null;
    const top = Math.max(...strips.map((strip) => strip.totals[strip.peak]));
    const budget = data.budget && data.budget <= 1.6 * top ? data.budget : 0;
    this.most = Math.max(top, budget, 1) * 1.06;
    this.plots = strips.map((strip) => new Plot(strip, this));
    this.active = this.plots[this.plots.length - 1];
    this.shown = this.active.at;
    this.legend = h("ul", { class: "legend" });
    this.panel = h("div", { class: "alive" });
    this.live = h("p", { class: "visually-hidden", "aria-live": "polite" });
    const options = [["role", "Why it is there"], ["part", "Layer"], ["source", "Source line"]];
    section("Memory over the program's order",
      h("span", {}, strips.length > 1 ? "The step as it is beside the planned one, on one scale. " : "", "Point, tap or use ", h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " to see who is alive; ",
        h("kbd", {}, "P"), " goes to the peak. The ribbon below shows which phase runs."),
      h("div", { class: "bar" }, segments("Stack by", options, this.by, (by) => this.regroup(by))),
      this.legend,
      h("div", { class: "strips" + (strips.length === 1 ? " one" : "") }, this.plots.map((plot) => h("div", { class: "strip" },
        h("h3", {}, plot.strip.title, h("span", {}, `${bytes(plot.strip.low)} to ${bytes(plot.strip.high)}, ${plot.strip.instrument}`)), plot.element))),
      data.budget > this.most && h("p", { class: "note" }, `The budget of ${bytes(data.budget)} is above the picture.`),
      data.bound > 0 && data.boundText && h("p", { class: "note" }, `No plan is below ${bytes(data.bound)}: ${data.boundText}.`),
      this.panel, this.live);
    this.regroup("role");
    let width = 0;
    new ResizeObserver(() => { if (innerWidth !== width || !this.plots[0].width) { width = innerWidth; this.draw(); } }).observe(this.plots[0].element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
  regroup(by) {
    this.by = by; this.lit = null;
    this.groups = groupsOf(this.strips, by);
    const entry = (group, i) => h("li", {}, h("button", {
      type: "button", title: group.hint, "aria-pressed": "false",
      onpointerenter: () => this.light(i), onpointerleave: () => this.light(null),
      onclick: (e) => this.light(this.held === i ? null : i, e.currentTarget),
    }, swatch(group), group.name));
    this.legend.replaceChildren(entry({ name: "Arguments, results, constants", hint: "there from the beginning to the end", color: "--fixed" }, "fixed"), ...this.groups.map(entry));
    this.held = null;
    this.draw();
  }
  light(which, button) {
    if (button) {
      this.held = which;
      for (const other of this.legend.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button && which !== null));
    }
    const lit = which ?? this.held ?? null;
    if (lit !== this.lit) { this.lit = lit; for (const plot of this.plots) plot.draw(); }
  }
  look(plot, position, pin) {
    const same = this.active === plot && this.shown === position;
    if (pin) { plot.at = position; this.pinned = plot; }
    if (same && !pin) return;
    this.active = plot; this.shown = position; this.life = null;
    this.update(pin);
  }
  back() {
    const plot = this.pinned || this.plots[this.plots.length - 1];
    this.look(plot, plot.at, false);
  }
  draw() {
    for (const plot of this.plots) plot.draw();
    this.list();
  }
  update(spoken) {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      for (const plot of this.plots) if (plot.width) plot.annotate();
      this.list();
      const { strip } = this.active, op = strip.ops[this.shown], text = `${this.shown + 1} of ${strip.ops.length}: ${op.name}, ${bytes(strip.totals[this.shown])} alive`;
      this.active.element.setAttribute("aria-valuenow", this.shown + 1);
      this.active.element.setAttribute("aria-valuetext", text);
      if (spoken) this.live.textContent = text;
    });
  }
  list() {
    const { strip } = this.active, at = this.shown, op = strip.ops[at];
    if (!op) return;
    const rows = new Map(), index = new Map(this.groups.map((group, i) => [group.key, i])), key = KEYS[this.by];
    for (const b of strip.buffers) {
      if (b.first > at || b.last < at) continue;
      const id = [b.op, b.value, b.source, b.role, b.region].join("\0"), row = rows.get(id);
      if (row) { row.size += b.size; row.count++; row.first = Math.min(row.first, b.first); row.last = Math.max(row.last, b.last); }
      else rows.set(id, { ...b, count: 1, group: this.groups[index.get(key(b)) ?? this.groups.length - 1] });
    }
    const sorted = [...rows.values()].sort((a, b) => b.size - a.size), most = Math.max(strip.fixed, sorted.length ? sorted[0].size : 0, 1);
    const meter = (size, group) => h("span", { class: "meter" }, h("i", { class: group.hatched ? "swatch hatched" : "", style: `width:${(100 * size / most).toFixed(1)}%;border-radius:0;background-color:var(${group.color})` }));
    const body = sorted.slice(0, 80).map((b) => h("tr", {
      onpointerenter: () => { this.life = b; this.active.annotate(); }, onpointerleave: () => { this.life = null; this.active.annotate(); },
    }, h("td", { class: "num" }, bytes(b.size)), h("td", { class: "tight wide" }, meter(b.size, b.group)), h("td", { class: "code" }, b.count > 1 ? `${b.count} × ${b.value}` : b.value),
      h("td", {}, made(b.op, b.region)), h("td", {}, line(b.source)), h("td", { class: "wide" }, h("span", { class: "tag" }, swatch({ color: `--${b.role}`, hatched: b.role === "recomputed" }), ROLES[b.role][0].toLowerCase())),
      h("td", { class: "num wide" }, b.first === b.last ? `${b.first + 1}` : `${b.first + 1}–${b.last + 1}`)));
    if (strip.fixed) body.push(h("tr", {}, h("td", { class: "num" }, bytes(strip.fixed)), h("td", { class: "wide" }, meter(strip.fixed, { color: "--fixed" })), h("td", { colspan: 3 }, "arguments, results, constants"), h("td", { class: "wide" }, "always there"), h("td", { class: "num wide" }, `1–${strip.ops.length}`)));
    const rest = sorted.slice(80).reduce((sum, b) => sum + b.size, 0);
    if (rest) body.push(h("tr", {}, h("td", { class: "num" }, bytes(rest)), h("td", { colspan: 6 }, `${count(sorted.length - 80)} smaller rows`)));
    const head = (name, extra) => h("th", { scope: "col", class: extra }, h("span", {}, name));
    const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Who is alive" }, h("table", {},
      h("thead", {}, h("tr", {}, head("Bytes", "num"), head("", "wide"), head("Value"), head("Made by"), head("Line"), head("Why", "wide"), head("Alive", "num wide"))), h("tbody", {}, body)));
    this.panel.replaceChildren(
      h("h3", {}, `${strip.title}: ${bytes(strip.totals[at])} alive at operation ${count(at + 1)} of ${count(strip.ops.length)}${at === strip.peak ? ", the peak" : ""}`),
      h("p", {}, `It runs ${op.name}`, op.phase !== "other" ? ` (${op.phase})` : "", op.source ? [" at ", line(op.source)] : "", "."), scroll);
  }
}
