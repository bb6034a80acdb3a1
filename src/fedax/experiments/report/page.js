"use strict";
// The pictures are there without this script. It shows values where a reader points or goes by the arrow keys, hides
// methods, changes axes and zooms. What it draws again it draws as svg.py and charts.py do.
document.documentElement.classList.add("on");
const WIDTH = 2000, HEIGHT = 1000;

// ---- axes
const axis = (low, high, {log = false, unit = "", whole = false} = {}) => ({low, high, log, unit, whole});
const height = (a, v) => a.log ? (v > 0 ? Math.log10(v) : NaN) : v;
const share = (a, v) => v === null ? NaN : (height(a, v) - height(a, a.low)) / (height(a, a.high) - height(a, a.low));
function valueAt(a, s) {
  const v = height(a, a.low) + s * (height(a, a.high) - height(a, a.low));
  return a.log ? 10 ** v : v;
}
function around(values, log, unit) {
  values = values.filter(v => Number.isFinite(v) && (!log || v > 0)).map(v => log ? Math.log10(v) : v);
  if (!values.length) return axis(0, 1, {unit});
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const wide = high - low, least = 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  const pad = 0.05 * (wide > least ? wide : Math.abs(high) || 1);
  [low, high] = [low - pad, high + pad];
  return log ? axis(Math.max(10 ** low, 1e-307), 10 ** high, {log, unit}) : axis(low, high, {unit});
}
function ticks(a) {
  if (a.log && a.high > 3 * a.low)
    return decades(a.low, a.high).map(v => [share(a, v), written(v, 10 ** Math.floor(Math.log10(v)), v, a.unit)]);
  let step = roundStep((a.high - a.low) / 6);
  if (a.whole) step = Math.max(step, 1);
  const first = Math.ceil(a.low / step - 1e-9), last = Math.floor(a.high / step + 1e-9), found = [];
  for (let k = first; k <= last; k++) found.push(k * step);
  const top = found.reduce((most, v) => Math.max(most, Math.abs(v)), 0);
  return found.map(v => [share(a, v), written(v, step, top, a.unit)]);
}
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5].map(m => m * power).find(v => v >= least * (1 - 1e-9)) ?? 10 * power;
}
function decades(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), found = [];
  const every = Math.max(1, Math.ceil((last - first) / 7)), parts = Math.log10(high / low) < 2.2 ? [1, 2, 5] : [1];
  for (let e = first; e <= last; e++) if (e % every === 0) for (const m of parts) found.push(m * 10 ** e);
  return found.filter(v => low <= v && v <= high);
}
function written(value, step, top, unit) {
  if (unit === "%") return `${fixed(100 * value, 100 * step)}\u00a0%`;
  if (top >= (unit === "B" ? 1e3 : 1e4) && top < 1e15) {
    const power = Math.floor(Math.log10(top) / 3 + 1e-9), scale = 1000 ** power;
    return `${fixed(value / scale, step / scale)}\u00a0${["", "k", "M", "G", "T"][power]}${unit === "B" ? unit : ""}`;
  }
  if (value && !(top >= 1e-3 && top < 1e15)) {
    const digits = Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9);
    const [mantissa, exponent] = value.toExponential(Math.min(Math.max(digits, 0), 9)).split("e");
    return `${+mantissa}e${+exponent}`;
  }
  return unit === "B" ? `${fixed(value, step)}\u00a0B` : fixed(value, step);
}
const fixed = (value, step) => value.toFixed(Math.min(Math.max(Math.ceil(-Math.log10(step) - 1e-9), 0), 12));
function shown(value, unit, whole) {   // as the tables have it
  if (value === null) return "not finite";
  if (unit === "%") return `${(100 * value).toFixed(2)}\u00a0%`;
  if (unit === "s") return value < 100 ? `${value.toFixed(2)}\u00a0s` : `${(value / 60).toFixed(1)}\u00a0min`;
  const scaled = unit === "B" || whole;
  if (scaled && Math.abs(value) >= (unit === "B" ? 999.5 : 1e4)) {
    const power = Math.min(4, Math.floor(Math.log10(value * 1.0005) / 3));
    return `${(value / 1000 ** power).toPrecision(3)}\u00a0${["", "k", "M", "G", "T"][power]}${unit}`;
  }
  if (scaled) return `${+value.toFixed(1)}\u00a0${unit}`.trim();
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-4 && size < 1e6) ? `${+value.toPrecision(4)}` : value.toExponential(3);
}

// ---- what lies in a field
const percent = s => `${Math.floor(s * 1e4 + 0.5) / 100}%`;
const clip = (v, low, high) => Math.min(Math.max(v, low), high);
const unit = (x, y) => [Math.floor(clip(WIDTH * x, -9 * WIDTH, 10 * WIDTH) + 0.5),
  Math.floor(clip(HEIGHT * (1 - y), -9 * HEIGHT, 10 * HEIGHT) + 0.5)];
function runs(x, y) {
  const found = [];
  let open = false;
  x.forEach((u, i) => {
    const there = Number.isFinite(u) && Number.isFinite(y[i]);
    if (there && !open) found.push([]);
    if (there) found.at(-1).push(unit(u, y[i]));
    open = there;
  });
  return found;
}
const steps = places => places.length < 2 ? "" : "l" + places.slice(1)
  .map(([u, v], i) => `${u - places[i][0]} ${v - places[i][1]}`).join(" ").replaceAll(" -", "-");
const path = (x, y) => runs(x, y).map(run => `M${run[0][0]} ${run[0][1]}${steps(run) || "h0"}`).join("");
function band(x, low, high) {
  const both = runs(x, high.map((v, i) => v + 0 * low[i])), below = runs(x, low.map((v, i) => v + 0 * high[i]));
  return both.map((run, i) => [...run, ...below[i].reverse()]).map(e => `M${e[0][0]} ${e[0][1]}${steps(e)}z`).join("");
}
const inside = s => s >= -1e-9 && s <= 1 + 1e-9;
const mark = (name, x, y) => inside(x) && inside(y) ? `<use href="#${name}" x="${percent(x)}" y="${percent(1 - y)}"/>` : "";
const away = heard => heard < 1 - 1e-6;   // not all of the weight was heard
function marks(k, x, y, {gone, heard = []}) {
  const last = x.length - 1, places = new Set();
  if (last < 0) return "";
  for (let j = 0; j < 7; j++) places.add(Math.min(last, Math.floor(last * (j + (k * 3 % 8) / 8) / 6 + 0.5)));
  const text = [...places].sort((a, b) => a - b).map(i => mark(`m${k % 9}`, x[i], y[i])).join("") +
    heard.map((h, i) => away(h) ? mark("away", x[i], y[i]) : "").join("");
  return gone && Number.isFinite(y[last]) ? text + mark("gone", x[last], clip(y[last], 0, 1)) : text;
}
const grid = (x, y) => ticks(x).map(([s, word]) => `<line x1="${percent(s)}" x2="${percent(s)}" y2="100%"/>` +
    `<text x="${percent(s)}" y="100%" dy="18">${word}</text>`).join("") +
  ticks(y).map(([s, word]) => `<line y1="${percent(1 - s)}" x2="100%" y2="${percent(1 - s)}"/>` +
    `<text class="y" x="-8" y="${percent(1 - s)}" dy=".33em">${word}</text>`).join("");

// ---- the box with values
const tip = Object.assign(document.createElement("div"), {className: "tip"});
tip.setAttribute("role", "status");
document.querySelector("main").append(tip);
function tell(frame, x, y, ...content) {   // beside a place in a frame, in pixels
  tip.replaceChildren(...content);
  const box = frame.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = box.left + x + 16 + own.width < innerWidth - 8 ? box.left + x + 16 : box.left + x - 16 - own.width;
  tip.style.left = `${clip(left, 8, Math.max(8, innerWidth - own.width - 8))}px`;
  tip.style.top = `${clip(box.top + y - own.height / 2, 8, Math.max(8, innerHeight - own.height - 8))}px`;
}
function add(tag, parent, attributes, text) {
  const made = parent.namespaceURI.endsWith("svg") ? document.createElementNS(parent.namespaceURI, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
const dataOf = node => JSON.parse(node.querySelector(":scope > script").textContent);

// ---- curves
const blocks = [...document.querySelectorAll(".curves")].map(node => {
  const block = {node, data: dataOf(node), hidden: new Set(), x: "rounds"};
  const frames = [...node.querySelectorAll(".chart")];
  block.charts = block.data.charts.map((chart, i) => ({...chart, block, figure: frames[i], frame: frames[i].querySelector(".frame"), zoom: null, at: null}));
  return block;
});
const visible = block => block.data.series.map((_, k) => k).filter(k => !block.hidden.has(k));

function draw(chart) {
  const {block, frame, values} = chart, {series, axes} = block.data, there = visible(block);
  const calm = there.filter(k => !series[k].gone), base = calm.length ? calm : there;
  const most = there.flatMap(k => series[k].x[block.x].slice(-1)).reduce((a, b) => Math.max(a, b), 0) || 1;
  chart.x = chart.zoom?.x ?? axis(0, most, {unit: axes[block.x].unit, whole: axes[block.x].whole});
  chart.y = chart.zoom?.y ?? around(base.flatMap(k => values[k].flat()), chart.log, chart.unit);
  chart.places = series.map((s, k) => ({x: s.x[block.x].map(v => share(chart.x, v)), y: values[k].map(part => part.map(v => share(chart.y, v)))}));
  frame.querySelector(".grid").innerHTML = grid(chart.x, chart.y);
  frame.querySelector(".name").textContent = axes[block.x].name;
  chart.places.forEach(({x, y: [mean, ...ends]}, k) => {
    const [lines, points] = frame.querySelectorAll(`g[data-k="${k}"]`), gone = block.hidden.has(k);
    lines.style.display = points.style.display = gone ? "none" : "";
    lines.querySelector(".line").setAttribute("d", path(x, mean));
    if (ends.length) lines.querySelector(".band").setAttribute("d", band(x, ...ends));
    points.innerHTML = marks(k, x, mean, series[k]);
  });
  for (const group of chart.groups) {   // lines on one another take turns
    const own = group.filter(k => !block.hidden.has(k));
    own.forEach((k, turn) => {
      const line = frame.querySelector(`g[data-k="${k}"] .line`);
      line.setAttribute("stroke-dasharray", own.length > 1 ? `10 ${10 * (own.length - 1)}` : "none");
      line.setAttribute("stroke-dashoffset", -10 * turn);
    });
  }
}
function raise(block, k) {   // k: of the method; undefined: none
  for (const {frame} of block.charts) {
    frame.classList.toggle("raised", k !== undefined);
    for (const g of frame.querySelectorAll("g[data-k]")) g.classList.toggle("up", +g.dataset.k === k);
  }
}
function quiet(chart) {
  tip.replaceChildren();
  chart.frame.querySelectorAll(".cursor, .at, .box").forEach(node => node.remove());
}
function point(chart, k, i, y) {   // show the values at evaluation i of method k, and of others at the same place
  const {block, frame, places, values} = chart, {series, axes} = block.data, box = frame.getBoundingClientRect();
  quiet(chart);
  chart.at = {k, i};
  const across = places[k].x[i], rows = [];
  for (const other of visible(block)) {
    const j = places[other].x.findIndex(u => Math.abs(u - across) * box.width < 0.75);
    if (j >= 0) rows.push({k: other, j, up: places[other].y[0][j]});
  }
  const near = places[k].y[0][i];
  rows.sort((a, b) => Math.abs(a.up - near) - Math.abs(b.up - near) || (a.k === k ? -1 : b.k === k ? 1 : 0));
  const more = rows.length - 9, content = document.createElement("div");
  content.style.display = "block";
  const cost = axes[block.x];
  add("span", content, {class: "soft"}, `${cost.name}: ${shown(series[k].x[block.x][i], cost.unit, cost.whole)}`);
  const lines = rows.slice(0, more > 1 ? 9 : undefined).sort((a, b) => b.up - a.up || a.k - b.k).map(row => {
    const line = document.createElement("div"), [mean, low, high] = values[row.k].map(part => part[row.j]);
    const between = low === undefined ? "" : ` (${shown(low, chart.unit)} to ${shown(high, chart.unit)})`;
    line.className = row.k === k ? "near" : "";
    line.append(block.node.querySelector(`.legend [data-k="${row.k}"] .key`).cloneNode(true));
    add("span", line, {}, series[row.k].label);
    const numbers = add("span", line, {}, shown(mean, chart.unit));
    add("span", numbers, {class: "spread"}, between);
    const heard = series[row.k].heard?.[row.j] ?? 1;
    if (away(heard)) add("span", numbers, {class: "spread"}, ` (${shown(heard, "%")} of the weight heard)`);
    return line;
  });
  if (more > 1) lines.push(Object.assign(document.createElement("div"), {textContent: `and ${more} more`, className: "soft"}));
  add("line", frame, {class: "cursor", x1: percent(across), x2: percent(across), y2: "100%"});
  if (inside(near)) add("circle", frame, {class: `at c${k % 8}`, cx: percent(across), cy: percent(1 - near), r: 5});
  tell(frame, across * box.width, y ?? (1 - clip(near, 0, 1)) * box.height, content, ...lines);
}
function nearest(chart, x, y) {   // the curve nearest to a place in pixels, and its evaluation there
  const box = chart.frame.getBoundingClientRect();
  let best = {far: Infinity};
  for (const k of visible(chart.block)) {
    const {x: across, y: [mean]} = chart.places[k], u = x / box.width;
    let i = 0;
    across.forEach((v, j) => { if (Math.abs(v - u) < Math.abs(across[i] - u)) i = j; });
    if (!across.length) continue;
    const j = clip(across[i] < u ? i + 1 : i - 1, 0, across.length - 1);
    const part = j === i ? 0 : clip((u - across[i]) / (across[j] - across[i]), 0, 1);
    const up = mean[i] + (part ? part * (mean[j] - mean[i]) : 0);
    const far = Math.hypot((1 - up) * box.height - y, (Math.abs(across[i] - u) - Math.abs((across[j] - across[i]) * part)) * box.width);
    if (far < best.far) best = {k, i, far};
  }
  return best;
}
function zoomed(a, from, to) {   // to a part of an axis, given by shares
  return axis(valueAt(a, from), valueAt(a, to), {...a, low: undefined, high: undefined});
}
function zoom(chart, x, y) {
  chart.zoom = x ? {x, y} : null;
  draw(chart);
  quiet(chart);
}

for (const block of blocks) {
  block.charts.forEach(chart => {
    const {figure, frame} = chart;
    draw(chart);
    let start = null;
    const place = event => { const box = frame.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top, box]; };
    frame.addEventListener("pointermove", event => {
      const [x, y, box] = place(event);
      if (start && Math.hypot(x - start[0], y - start[1]) > 6) {
        quiet(chart);
        const tall = Math.abs(y - start[1]) > 12;   // a flat box is of the x-axis alone
        add("rect", frame, {class: "box", x: Math.min(x, start[0]), width: Math.abs(x - start[0]),
          y: tall ? Math.min(y, start[1]) : 0, height: tall ? Math.abs(y - start[1]) : box.height});
        return;
      }
      const found = nearest(chart, x, y);
      if (found.k === undefined) return;
      raise(block, found.far < 30 ? found.k : undefined);
      point(chart, found.k, found.i, y);
    });
    frame.addEventListener("pointerdown", event => {
      if (event.pointerType !== "mouse" || event.button) return;
      start = place(event).slice(0, 2);
      frame.setPointerCapture(event.pointerId);
    });
    frame.addEventListener("pointerup", event => {
      const [x, y, box] = place(event), from = start;
      start = null;
      if (!from || Math.abs(x - from[0]) < 6) return;
      const [left, right] = [from[0], x].sort((a, b) => a - b).map(v => clip(v / box.width, 0, 1));
      const [top, low] = [from[1], y].sort((a, b) => a - b).map(v => clip(v / box.height, 0, 1));
      const tall = Math.abs(y - from[1]) > 12;
      if (right > left) zoom(chart, zoomed(chart.x, left, right), tall && low > top ? zoomed(chart.y, 1 - low, 1 - top) : chart.y);
    });
    const leave = () => { start = null; quiet(chart); raise(block); };
    frame.addEventListener("pointerleave", leave);
    frame.addEventListener("dblclick", () => zoom(chart));
    figure.addEventListener("blur", leave);
    figure.addEventListener("keydown", event => {
      if (event.target !== figure || event.ctrlKey || event.metaKey || event.altKey) return;
      const there = visible(block).filter(k => chart.places[k].x.length);
      if (!there.length) return;
      let {k, i} = chart.at && there.includes(chart.at.k) ? chart.at : {k: there[0], i: 0};
      const key = event.key, length = chart.places[k].x.length;
      if (key === "ArrowLeft" || key === "ArrowRight") i = chart.at ? clip(i + (key === "ArrowRight" ? 1 : -1), 0, length - 1) : i;
      else if (key === "ArrowUp" || key === "ArrowDown") {
        const up = other => chart.places[other].y[0][Math.min(i, chart.places[other].x.length - 1)];
        const order = [...there].sort((a, b) => up(a) - up(b) || a - b);
        k = order[clip(order.indexOf(k) + (key === "ArrowUp" ? 1 : -1), 0, order.length - 1)];
        i = Math.min(i, chart.places[k].x.length - 1);
      } else if (key === "+" || key === "=" || key === "-") {
        const part = key === "-" ? 1 : 0.25, {x, y} = chart;
        const u = clip(chart.places[k].x[i], 0, 1), v = clip(chart.places[k].y[0][i], 0, 1);
        if (key === "-" && !chart.zoom) return;
        zoom(chart, zoomed(x, u - part, u + part), zoomed(y, v - part, v + part));
      } else if (key === "0" || key === "Escape") zoom(chart);
      else return;
      event.preventDefault();
      raise(block, k);
      point(chart, k, i);
    });
    const scale = figure.querySelector(".scale");
    scale.addEventListener("click", () => {
      chart.log = !chart.log;
      scale.textContent = `${chart.log ? "log" : "linear"} scale`;
      zoom(chart);
    });
  });
  for (const button of block.node.querySelectorAll("[data-axis]"))
    button.addEventListener("click", () => blocks.forEach(other => {   // of all problems
      other.x = button.dataset.axis;
      for (const each of other.node.querySelectorAll("[data-axis]"))
        each.setAttribute("aria-pressed", each.dataset.axis === other.x);
      other.charts.forEach(chart => zoom(chart));
    }));
  const keys = [...block.node.querySelectorAll(".legend [data-k]")];
  const choose = hidden => {
    block.hidden = new Set(hidden);
    keys.forEach((button, k) => button.setAttribute("aria-pressed", !block.hidden.has(k)));
    block.charts.forEach(draw);
  };
  keys.forEach((button, k) => {
    button.addEventListener("click", () => choose(block.hidden.has(k) ? [...block.hidden].filter(other => other !== k) : [...block.hidden, k]));
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => raise(block, block.hidden.has(k) ? undefined : k));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => raise(block));
  });
  block.node.querySelector(".all")?.addEventListener("click", () => choose([]));
  block.node.querySelector(".none")?.addEventListener("click", () => choose(keys.keys()));
}

// ---- other pictures
for (const figure of document.querySelectorAll("section .chart")) {
  if (figure.closest(".curves")) continue;
  const spots = dataOf(figure), frame = figure.querySelector(".frame"), flat = figure.dataset.by === "x";
  let now = -1;
  const leave = () => { tip.replaceChildren(); frame.querySelectorAll(".cursor, .at").forEach(node => node.remove()); };
  const show = index => {
    leave();
    now = index;
    const [x, y, text] = spots[index], box = frame.getBoundingClientRect();
    if (flat) add("line", frame, {class: "cursor", x1: `${x / 10}%`, x2: `${x / 10}%`, y2: "100%"});
    else add("circle", frame, {class: "at", cx: `${x / 10}%`, cy: `${y / 10}%`, r: 5});
    tell(frame, x / 1000 * box.width, y / 1000 * box.height, text);
  };
  frame.addEventListener("pointermove", event => {
    const box = frame.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, far = Infinity;
    spots.forEach(([u, v], i) => {
      const d = Math.hypot(u / 1000 * box.width - x, flat ? 0 : v / 1000 * box.height - y);
      if (u >= 0 && d < far) [best, far] = [i, d];
    });
    if (best >= 0 && (flat || far < 60)) show(best); else leave();
  });
  frame.addEventListener("pointerleave", leave);
  figure.addEventListener("blur", leave);
  figure.addEventListener("keydown", event => {
    const forward = ["ArrowRight", "ArrowDown"].includes(event.key), back = ["ArrowLeft", "ArrowUp"].includes(event.key);
    if (event.key === "Escape") leave();
    if (!spots.length || !(forward || back)) return;
    event.preventDefault();
    show(clip(now + (forward ? 1 : -1), 0, spots.length - 1));
  });
}
