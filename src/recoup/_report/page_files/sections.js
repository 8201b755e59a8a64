// The other sections: the numbers, the curve, decisions, residuals, compiled arenas, the words.
function figures() {
  document.getElementById("report").append(h("dl", { class: "figures" }, data.figures.map((f) => h("div", { class: "figure" },
    h("dt", {}, f.what), h("dd", {}, h("div", { class: "value" }, f.unit === "share" ? percent(f.value, true) : f.unit === "bytes" ? bytes(f.value) : count(f.value)),
      h("span", { class: `kind ${f.kind}` }, f.kind), f.instrument !== f.kind && h("span", { class: "by" }, f.instrument))))));
}

// Peak against extra work. The horizontal axis is a square root: most trades are near zero.
function curve() {
  const points = data.curve.map(([low, estimate, high, overhead, chosen]) => ({ low, estimate, high, overhead, chosen }));
  const holder = h("div", { class: "curve", tabindex: 0, role: "slider", "aria-label": "Plans: peak against extra operations", "aria-valuemin": 1, "aria-valuemax": points.length });
  const tip = h("div", { class: "tip", hidden: true });
  let at = Math.max(0, points.findIndex((p) => p.chosen)), over = false;
  section("Memory against recomputation",
    `Each dot is a plan that no other found beats: the highest memory, ${data.curveInstrument}, against extra ${data.work}, counted.${points.some((p) => p.low < p.high) ? " Bars span the prediction's interval." : ""}`, holder);
  const most = Math.max(...points.map((p) => p.high), data.budget <= 1.6 * points[0].high ? data.budget : 0) * 1.06;
  const far = Math.max(...points.map((p) => p.overhead), 0.01) * 1.04;
  const steps = [0, .001, .002, .005, .01, .02, .05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10].filter((t) => t <= far);

  function draw() {
    const { width, height } = holder.getBoundingClientRect();
    if (!width) return;
    const m = { left: 58, right: 24, top: 14, bottom: 40 };
    const x = (share) => m.left + (width - m.left - m.right) * Math.sqrt(Math.max(0, share) / far), y = (size) => height - m.bottom - (height - m.top - m.bottom) * size / most;
    const parts = [];
    for (const size of ticks(most)) parts.push(s("line", { class: "grid", x1: m.left, x2: width - m.right, y1: y(size), y2: y(size), opacity: .6 }), s("text", { x: m.left - 8, y: y(size) + 4, "text-anchor": "end" }, bytes(size)));
    parts.push(s("line", { class: "grid", x1: m.left, x2: width - m.right, y1: y(0), y2: y(0) }));
    let last = -60;
    for (const t of steps) {
      if (x(t) - last < 52) continue;
      last = x(t);
      parts.push(s("line", { class: "grid", x1: x(t), x2: x(t), y1: y(0), y2: y(0) + 4 }), s("text", { x: x(t), y: y(0) + 17, "text-anchor": "middle" }, t ? `+${+(t * 100).toFixed(2)} %` : "0"));
    }
    parts.push(s("text", { x: width - m.right, y: height - 5, "text-anchor": "end" }, `extra ${data.work} (square-root scale)`));
    const rule = (size, kind, text, under) => size > 0 && size <= most && parts.push(s("line", { class: kind, x1: m.left, x2: width - m.right, y1: y(size), y2: y(size) }),
      s("text", { class: `halo ${kind}`, x: width - m.right, y: under ? y(size) + 15 : y(size) - 5, "text-anchor": "end" }, `${text} ${bytes(size)}`));
    rule(data.budget, "budget", "budget", false);
    rule(data.bound, "bound", "no plan is below", true);
    const path = points.map((p, i) => (i ? `H${x(p.overhead)}V${y(p.high)}` : `M${x(p.overhead)},${y(p.high)}`)).join("");
    parts.push(s("path", { d: path, fill: "none", stroke: "var(--kept)", "stroke-width": 1.6, opacity: .7 }));
    for (const p of points) {
      parts.push(s("line", { x1: x(p.overhead), x2: x(p.overhead), y1: y(p.low), y2: y(p.high), stroke: "var(--kept)", "stroke-width": 1.2, opacity: .5 }));
      if (!p.chosen) parts.push(s("circle", { cx: x(p.overhead), cy: y(p.high), r: 4, fill: "var(--card)", stroke: "var(--kept)", "stroke-width": 1.8 }));
    }
    const chosen = points.find((p) => p.chosen);
    if (chosen) parts.push(s("circle", { cx: x(chosen.overhead), cy: y(chosen.high), r: 7, fill: "var(--recomputed)", stroke: "var(--ink)", "stroke-width": 1.8 }),
      s("text", { class: "halo strong", x: x(chosen.overhead) + 12, y: y(chosen.high) - 9 }, data.mark));
    const p = points[at];
    if (over) parts.push(s("circle", { cx: x(p.overhead), cy: y(p.high), r: 11, fill: "none", stroke: "var(--ink)", "stroke-width": 1.2 }));
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...parts);
    const text = `${bytes(p.high)} for ${percent(p.overhead, true)}`;
    holder.setAttribute("aria-valuenow", at + 1);
    holder.setAttribute("aria-valuetext", text);
    tip.hidden = !over;
    tip.replaceChildren(...[h("div", {}, h("b", {}, text), p.chosen ? ` (${data.mark})` : ""), p.low < p.high && h("div", {}, `predicted ${bytes(p.low)} to ${bytes(p.high)}`)].filter(Boolean));
    if (over) {
      const left = Math.max(0, Math.min(width - tip.offsetWidth, x(p.overhead) + 14)), top = y(p.high) - tip.offsetHeight - 14;
      tip.style.left = `${left}px`;
      tip.style.top = `${top < 0 ? y(p.high) + 14 : top}px`;
    }
    draw.x = x; draw.y = y;
  }
  const picture = s("svg", { "aria-hidden": "true" });
  holder.append(picture, tip);
  const nearest = (event) => {
    const box = holder.getBoundingClientRect();
    const distance = (p) => Math.hypot(draw.x(p.overhead) - (event.clientX - box.left), draw.y(p.high) - (event.clientY - box.top));
    at = points.reduce((best, p, i) => (distance(p) < distance(points[best]) ? i : best), 0);
    over = true;
    draw();
  };
  holder.addEventListener("pointermove", nearest);
  holder.addEventListener("click", nearest);
  holder.addEventListener("pointerleave", () => { over = document.activeElement === holder; draw(); });
  holder.addEventListener("focus", () => { over = true; draw(); });
  holder.addEventListener("blur", () => { over = false; draw(); });
  holder.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: points.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    at = Math.max(0, Math.min(points.length - 1, to));
    over = true;
    draw();
  });
  new ResizeObserver(draw).observe(holder);
}

const ACTIONS = { keep: "--kept", recompute: "--recomputed", offload: "--other" };
const WORDS = { keep: "kept", recompute: "recomputed", offload: "offloaded" };

function explained(d) {
  const from = d.source ? [" at ", line(d.source)] : "", use = d.use ? [" ", h("b", {}, d.use), d.use_source ? [" at ", line(d.use_source)] : ""] : " a later use";
  const what = [h("span", { class: "mono" }, d.value), d.name ? ` “${d.name}”` : "", " from ", h("b", {}, d.op), d.region ? [" in region ", h("b", {}, d.region)] : "", from];
  const scope = /^[()/]*(transpose|jvp|[()/])*$/.test(d.scope) ? "" : h("div", { class: "mono" }, d.scope);
  if (d.action === "offload") return h("div", {}, what, " is moved to the host's memory and fetched back for", use, `. ${bytes(d.bytes)} each way, none on the device in between; not measured for speed.`, scope);
  if (d.action !== "recompute") return h("div", {}, what, ` is ${WORDS[d.action] || d.action} for`, use, d.bytes ? `. It holds ${bytes(d.bytes)}${d.count > 1 ? ` in ${count(d.count)} values` : ""}.` : ".", scope);
  return h("div", {}, what, " is computed again for", use, d.count > 1 ? `, ${plural(d.count, "time")}. ` : ". ",
    d.recipe.length ? ["Recipe: ", h("span", { class: "mono" }, d.recipe.join(" ← ")), d.inputs.length ? [", from ", h("span", { class: "mono" }, d.inputs.join(", "))] : "", ". "] : "",
    d.bytes ? `Saves ${bytes(d.bytes)}. ` : "On the way to other values; nothing is saved by it alone. ", `Costs ${count(Math.round(d.flops))} floating-point operations.`, scope);
}

function decisions() {
  const rows = grouped(data.decisions, ["action", "value", "name", "op", "region", "source", "use", "use_source", "recipe"], ["bytes", "flops"]);
  const total = (action) => rows.filter((d) => d.action === action).reduce((sum, d) => sum + d.bytes, 0);
  const saved = total("recompute"), kept = total("keep"), moved = total("offload");
  const columns = [
    { name: "Decision", class: "tight", sort: (d) => d.action, cell: (d) => h("span", { class: "tag" }, swatch({ color: ACTIONS[d.action] || "--other", hatched: d.action === "recompute" }), WORDS[d.action] || d.action) },
    { name: "Bytes", num: true, sort: (d) => d.bytes, cell: (d) => (d.bytes ? bytes(d.bytes) : "—") },
    { name: "Value", class: "code", sort: (d) => d.value, cell: (d) => (d.count > 1 ? `${d.count} × ` : "") + d.value + (d.name ? ` “${d.name}”` : "") },
    { name: "Made by", sort: (d) => d.op, cell: (d) => made(d.op, d.region) },
    { name: "Line", sort: (d) => place(d.source), cell: (d) => line(d.source) },
    { name: "For", wide: true, sort: (d) => d.use, cell: (d) => [d.use, d.use_source ? [" ", line(d.use_source)] : ""] },
    { name: "Cost", num: true, sort: (d) => d.flops, cell: (d) => (d.action === "recompute" ? percent(d.flops / Math.max(1, data.flops)) : "") },
  ];
  const words = (d) => [d.action, WORDS[d.action], d.value, d.name, d.op, d.source, d.use, d.use_source, d.region, d.scope].join(" ");
  const table = sortable(columns, rows, { explain: explained, words, step: 25 });
  let action = null;
  const filter = h("input", { class: "filter", type: "search", placeholder: "Filter: line, operation, layer", "aria-label": "Filter decisions", oninput: again });
  function again() { table.filter(filter.value, action && ((d) => d.action === action)); }
  section("Decisions", `Values that wait for a late use: ${bytes(kept)} kept, ${bytes(saved)} computed again${moved ? `, ${bytes(moved)} offloaded to the host` : ""}. Bytes and costs are counted from the program; over all iterations inside loops. Open a row for its recipe.`,
    h("div", { class: "bar" }, segments("Show", [[null, "All"], ["recompute", "Recomputed"], ...(moved ? [["offload", "Offloaded"]] : []), ["keep", "Kept"]], null, (value) => { action = value; again(); }), filter), table.element);
}

function residuals() {
  const computed = data.residuals.filter((r) => r.kind === "computed");
  const rows = grouped(data.residuals, ["kind", "value", "op", "name", "region", "source", "needed_by", "needed_by_source", "iterations", "fused"], ["bytes"])
    .sort((a, b) => (b.kind === "computed") - (a.kind === "computed"));
  const columns = [
    { name: "Bytes", num: true, sort: (r) => r.bytes, cell: (r) => bytes(r.bytes) },
    { name: "Value", class: "code", sort: (r) => r.value, cell: (r) => (r.count > 1 ? `${count(r.count)} × ` : "") + r.value + (r.iterations ? ` × ${plural(r.iterations, "step")}` : "") },
    { name: "Kind", class: "tight", sort: (r) => r.kind, cell: (r) => r.kind + (r.fused ? ", fused" : "") },
    { name: "Made by", sort: (r) => r.op || r.name, cell: (r) => made(r.op || r.name, r.region) },
    { name: "Line", sort: (r) => place(r.source), cell: (r) => line(r.source) },
    { name: "Needed by", wide: true, sort: (r) => r.needed_by, cell: (r) => [r.needed_by, r.needed_by_source ? [" ", line(r.needed_by_source)] : ""] },
  ];
  const table = sortable(columns, rows, { words: (r) => [r.kind, r.value, r.op, r.name, r.source, r.region, r.scope, r.needed_by].join(" "), step: 40 });
  const filter = h("input", { class: "filter", type: "search", placeholder: "Filter: line, operation, kind", "aria-label": "Filter residuals", oninput() { table.filter(filter.value); } });
  section("Kept for the backward pass", `${plural(computed.length, "computed value")}, ${bytes(computed.reduce((sum, r) => sum + r.bytes, 0))}; arguments and constants are there anyway. Counted from the jaxpr: “fused” ones the compiler can compute inside their readers instead.`,
    h("div", { class: "bar" }, filter), table.element);
}

// Bytes alive over the compiler's own schedule: an outline, its peak marked. Columns show their fullest moment.
function outline(sizes) {
  const columns = Math.min(sizes.length, 1000), width = 1000, height = 90;
  const most = sizes.reduce((a, b) => Math.max(a, b), 1), at = sizes.indexOf(most);
  const fullest = Array.from({ length: columns }, (_, x) => {
    let best = 0;
    for (let i = Math.floor(x * sizes.length / columns); i < Math.max(Math.floor((x + 1) * sizes.length / columns), Math.floor(x * sizes.length / columns) + 1); i++) best = Math.max(best, sizes[i]);
    return best;
  });
  const y = (size) => (height * (1 - size / most)).toFixed(1);
  const path = fullest.map((size, x) => `L${(x * width / columns).toFixed(1)},${y(size)}H${((x + 1) * width / columns).toFixed(1)}`).join("");
  return h("div", { class: "outline" },
    s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `Compiled temporaries over ${count(sizes.length)} instructions, highest at ${count(at + 1)}` },
      s("path", { d: `M0,${height}${path}V${height}Z`, fill: "var(--kept)", opacity: .8 })),
    h("span", { style: `left:${(100 * (at + .5) / sizes.length).toFixed(2)}%` }));
}

function arena(title, found) {
  const groups = { ...Object.fromEntries(Object.keys(ROLES).map((r) => [r, { color: `--${r}`, hatched: r === "recomputed" }])), reserved: { color: "--rest" }, padding: { color: "--fixed" } };
  const rows = grouped(found.occupants, ["op", "value", "source", "role", "region"], ["bytes"]);
  const total = Math.max(1, found.temporaries_bytes), shares = Object.entries(found.by_role || {});
  const columns = [
    { name: "Bytes", num: true, sort: (o) => o.bytes, cell: (o) => bytes(o.bytes) },
    { name: "Value", class: "code", sort: (o) => o.value, cell: (o) => (o.count > 1 ? `${o.count} × ` : "") + o.value },
    { name: "Made by", sort: (o) => o.op, cell: (o) => made(o.op || o.instruction || "—", o.region) },
    { name: "Line", sort: (o) => place(o.source), cell: (o) => [line(o.source), o.inferred ? " (inferred)" : ""] },
    { name: "Why", class: "tight", sort: (o) => o.role, cell: (o) => h("span", { class: "tag" }, swatch(groups[o.role] || groups.other), o.role) },
  ];
  const table = sortable(columns, rows, { words: (o) => [o.op, o.value, o.source, o.role, o.region].join(" "), step: 15 });
  section(`Compiled arena at its peak: ${title}`, `${bytes(found.temporaries_bytes)} of temporaries, ${found.instrument}; beside them ${bytes(found.total_bytes - found.temporaries_bytes)} of arguments, results and constants. The parts add up to the arena; ${percent(found.attributed_bytes / total)} of it has a source line.`,
    (found.moments_bytes || []).length > 1 && [outline(found.moments_bytes), h("p", { class: "note" }, `Bytes alive over the ${count(found.moments_bytes.length)} instructions of the compiled schedule; the mark is the peak, which the parts below take apart.`)],
    h("div", { class: "shares", role: "img", "aria-label": shares.map(([role, size]) => `${role} ${bytes(size)}`).join(", ") }, shares.map(([role, size]) => h("i", { class: (groups[role] || groups.other).hatched ? "swatch hatched" : "", style: `width:${100 * size / total}%;height:auto;border-radius:0;background-color:var(${(groups[role] || groups.other).color})`, title: `${role} ${bytes(size)}` }))),
    h("ul", { class: "legend" }, shares.map(([role, size]) => h("li", {}, h("button", { type: "button", tabindex: -1 }, swatch(groups[role] || groups.other), `${role} ${bytes(size)}`)))),
    table.element);
}

function words() {
  const list = [
    ["predicted", "By the memory model, which imitates the compiler on the traced program. An interval over the orders that the compiler may choose; nothing was compiled."],
    ["compiled", "Read off the compiled program: the compiler's own memory analysis. It leaves out the runtime, the compiler itself and other programs."],
    ["counted", "Added up from the program as it was traced: bytes by shape, floating-point operations by kind, loops times their length."],
    ["proved", "No plan of this step can be below it: the operands and the result of one operation and what is always there."],
    ["given", "By you."],
  ];
  const used = new Set([...data.figures.map((f) => f.kind), ...(data.strips.length || data.curve.length ? ["predicted"] : []), ...(Object.keys(data.arenas).length ? ["compiled"] : []), ...(data.residuals.length ? ["counted"] : [])]);
  section("Where the numbers come from", null, h("dl", { class: "words" }, list.filter(([name]) => used.has(name)).map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])),
    data.notes.map((note) => h("p", { class: "note" }, note)));
  const made = Object.entries(data.made).map(([name, version]) => `${name} ${version}`).join(", ");
  document.getElementById("report").append(h("footer", {}, `Made by recoup${made ? `, ${made}` : ""}. This file needs no network.`));
}

if (data.figures.length) figures();
if (data.strips.length) window.memoryView = new MemoryView(data.strips.map(unpack));
if (data.curve.length > 1) curve();
if (data.decisions.length) decisions();
for (const [title, found] of Object.entries(data.arenas)) arena(title, found);
if (data.residuals.length) residuals();
words();
document.documentElement.dataset.ready = "yes";
