"use strict";
// Draws the pictures of the page by uPlot, from the data beside them; each can be read by pointer and by keyboard.
document.documentElement.classList.add("on");
const clip = (v, low, high) => Math.min(Math.max(v, low), high);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const DASHES = {dash: [9, 3], dot: [2, 3], dashdot: [9, 3, 2, 3]};
const FONT = "12px system-ui, sans-serif";

function text(v, {unit, whole, words}, digits = 4) {
  if (v === null || v === undefined) return "not finite";
  if (words.length) return words[v] ?? "";
  if (unit === "%") return `${+(100 * v).toPrecision(digits)}\u00a0%`;
  const size = Math.abs(v), power = (unit === "B" || whole) && size >= 1e3 ? Math.min(4, Math.floor(Math.log10(size) / 3 + 1e-9)) : 0;
  const short = size && (size < 1e-3 || size >= 1e6) ? (v / 1000 ** power).toPrecision(digits) : v / 1000 ** power;
  return `${+(+short).toPrecision(digits)}\u00a0${["", "k", "M", "G", "T"][power]}${unit}`.trim();
}

// ---- a picture
const range = (chart, scale, log, share, zero) => (u, low, high, name) => {
  if (chart.exact[name]) return [low, high];   // as it was zoomed
  if (scale.words.length) return [-0.5, scale.words.length - 0.5];
  if (low === null || low === undefined) return log ? [0.1, 1] : [0, 1];
  const power = 10 ** Math.floor(Math.log10(low));
  if (log) return [Math.floor(low / power * 0.98) * power || low / 1.1, high * 1.1];   // ticks begin at the low end
  const pad = share * (high - low > 1e-9 * Math.abs(high) ? high - low : Math.abs(high) || 1);
  return [zero ? 0 : low - pad, high + pad];
};
const axis = (scale, title, turned, across) => ({
  stroke: css("--soft"), font: FONT, labelFont: FONT, label: scale.label === title ? null : scale.label || null, labelSize: 20,
  ticks: {show: false}, grid: {stroke: css("--line"), width: 1, show: !scale.words.length}, rotate: turned ? 42 : 0,
  size: across ? (turned ? 90 : 26) : (u, texts) => 14 + 7 * Math.max(3, ...(texts ?? []).map(each => each.length)),
  values: (u, splits) => splits.map(v => v === null || (scale.whole && v % 1) ? "" : text(v, scale.unit === "s" ? {...scale, unit: ""} : scale)),
  ...(scale.words.length && {splits: u => {   // as many words as there is room for
    const each = turned || !across ? 16 : 8 + 7 * Math.max(...scale.words.map(word => word.length));
    return scale.words.map((_, i) => i).filter(i => i % Math.ceil(scale.words.length * each / (across ? u.width : u.height)) === 0);
  }}),
});

function draw(chart) {
  const {block, plot, values, y, name, log} = chart, {series, axes} = block.data, x = axes[block.x], bars = series[0].kind === "bars";
  const turned = x.words.some(word => word.length > 3 && 7 * word.length * x.words.length > plot.clientWidth - 80);
  const many = series.length > 8, calm = series.some(s => !s.gone), paper = css("--paper"), tables = [];
  const options = {
    width: plot.clientWidth, height: plot.clientHeight, legend: {show: false}, padding: [12, 14, 0, 0],
    cursor: {points: {show: false}, drag: {x: true, y: true, uni: 30, dist: 6}, bind: {dblclick: (u, node, all) => event => { chart.exact = {}; all(event); }}},
    scales: {x: {time: false, distr: x.log ? 3 : 1, range: range(chart, x, x.log, 0.02)}, y: {distr: log ? 3 : 1, range: range(chart, y, log, 0.05, bars)}},
    axes: [axis(x, "", turned, true), axis(y, name)], series: [{}], bands: [],
    hooks: {setCursor: [u => point(chart, nearest(chart, u.cursor))],
      setSelect: [u => { chart.exact = {x: u.select.width < u.over.clientWidth, y: u.select.height < u.over.clientHeight}; }]},
  };
  series.forEach((s, k) => {
    const colour = bars ? block.patches[s.k % 10] : s.k < 0 ? css("--none") : css(`--c${s.k % 8}`), at = s.x[block.x], [line, ...ends] = values[k];
    const push = (places, heights, look) => {   // heights where there are places; the same place once: uPlot keeps one of two
      tables.push([places.map((v, i) => v * (1 + 1e-12 * i)), heights.map(v => log && v <= 0 ? null : v)]);
      options.series.push({auto: !s.gone || !calm, show: !block.hidden.has(k), points: {show: false}, paths: () => null, k, ...look});
    };
    const dots = (some, size, fill, stroke) => some.length && push(some.map(i => at[i]), some.map(i => line[i]),
      {stroke, points: {show: true, size, fill, stroke, width: 1.5}});
    const all = at.map((_, i) => i);
    if (ends.length) {
      ends.forEach(end => push(at, end, {paths: undefined, width: 0}));
      options.bands.push({series: [tables.length, tables.length - 1], fill: colour + (many ? "0a" : "26")});
    }
    if (bars) push(at, line, {fill: colour, width: 0, paths: uPlot.paths.bars({size: [0.85]})});
    else if (s.shade) {
      for (let level = -1; level <= 10; level++) dots(all.filter(i => level === (s.shade[i] === null ? -1 : Math.ceil(10 * s.shade[i] - 1e-9))), 11, ...level < 0 ? [paper, css("--bad")] :
        [css("--heat") + Math.round(25.5 * level).toString(16).padStart(2, "0"), css("--faint")]);
      if (s.shade[0] !== null) dots([0], 18, "#0000", css("--c1"));   // the best
    }
    else if (s.kind === "dots") dots(all, 7, colour, paper);
    else if (s.kind === "box") { push(at, line, {paths: undefined, width: 22, stroke: colour + "40"}); dots([1], 13, colour, paper); }
    else {
      const plain = s.kind !== "line";
      push(at, line, {paths: undefined, stroke: colour, width: plain ? 1.5 : (many ? 1.2 : 1.8) + 1.2 * (1 - k / series.length), dash: plain ? s.k < 0 ? [4, 4] : [] : DASHES[s.dash]});
      if (!plain && at.length <= 12) dots(all, 6, colour, colour);
      dots(all.filter(i => s.heard?.[i] < 1 - 1e-6), 9, paper, colour);
      if (s.gone) dots(all.slice(-1), 13, paper, colour);
    }
  });
  if (bars) { tables.reverse(); options.series = [{}, ...options.series.slice(1).reverse()]; }   // the lowest in front
  chart.exact = {};
  chart.u?.destroy();
  chart.u = new uPlot(options, uPlot.join(tables), plot);
  chart.at = null;
  const scale = chart.figure.querySelector("button.scale");
  if (scale) scale.textContent = log ? "log scale" : "linear scale";
}

// ---- what is pointed at
const tip = Object.assign(document.createElement("div"), {className: "tip"});
tip.setAttribute("role", "status");
document.querySelector("main").append(tip);
function add(tag, parent, className, textContent) {
  const made = Object.assign(document.createElement(tag), {className, textContent});
  parent.append(made);
  return made;
}
const points = ({block, values, u}) => block.data.series.flatMap((s, k) => block.hidden.has(k) || !(s.texts.length || (s.label && s.kind === "line")) ? [] :
  [s.x[block.x].map((v, i) => ({s, k, i, left: u.valToPos(v, "x"), top: u.valToPos(values[k][0][i] ?? NaN, "y")}))]).filter(row => row.length);
function nearest(chart, {left, top}) {
  const far = each => Math.hypot(each.left - left, each.s.kind === "bars" ? 0 : (each.top || 0) - top);
  return left < 0 ? null : points(chart).flat().reduce((best, each) => best && far(best) <= far(each) ? best : each, null);
}
function point(chart, at) {   // tell of a point, and of the other series at the same place
  const {block, u, values, y} = chart, {series, axes} = block.data, x = axes[block.x];
  tip.replaceChildren();
  raise(block, at?.k);
  if (!(chart.at = at)) return;
  if (at.s.texts.length) tip.textContent = at.s.texts[at.i];
  else {
    add("span", tip, "soft", `${x.label}: ${text(at.s.x[block.x][at.i], x)}`);
    const near = each => Math.abs(each.top - at.top);
    const rows = points(chart).flatMap(row => row.find(each => Math.abs(each.left - at.left) < 0.75) ?? []).sort((a, b) => near(a) - near(b));
    const most = rows.length > 10 ? 9 : rows.length;
    for (const {s, k, i} of rows.slice(0, most).sort((a, b) => a.top - b.top)) {
      const line = add("div", tip, k === at.k ? "near" : "", ""), [mean, low, high] = values[k].map(part => part[i]);
      line.append(block.node.querySelector(`.legend [data-k="${k}"] .key`).cloneNode(true));
      add("span", line, "", s.label);
      const numbers = add("span", line, "", text(mean, y));
      if (low !== undefined) add("span", numbers, "spread", ` (${text(low, y)} to ${text(high, y)})`);
      if (s.heard?.[i] < 1 - 1e-6) add("span", numbers, "spread", ` (${text(s.heard[i], {unit: "%", words: []})} of the weight heard)`);
    }
    if (most < rows.length) add("div", tip, "soft", `and ${rows.length - most} more`);
  }
  const box = u.over.getBoundingClientRect(), own = tip.getBoundingClientRect(), side = box.left + at.left + 16;
  tip.style.left = `${clip(side + own.width < innerWidth - 8 ? side : side - 32 - own.width, 8, Math.max(8, innerWidth - own.width - 8))}px`;
  tip.style.top = `${clip(box.top + clip(at.top || 0, 0, box.height) - own.height / 2, 8, Math.max(8, innerHeight - own.height - 8))}px`;
}
function raise(block, k) {   // series k stands out, in all pictures; undefined: none
  if (block.up === k) return;
  block.up = k;
  for (const {u} of block.charts) {
    for (const s of u.series) s.alpha = k === undefined || s.k === k || s.k === undefined ? 1 : 0.25;
    u.redraw(false, false);
  }
}
function keyed(chart, event) {
  const {u, figure} = chart, rows = points(chart), key = event.key, step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1}[key] ?? 0;
  if (event.target !== figure || event.ctrlKey || event.metaKey || event.altKey || !rows.length) return;
  let row = Math.max(0, rows.findIndex(([{k}]) => k === chart.at?.k)), i = chart.at?.i ?? 0;
  if (key === "ArrowUp" || key === "ArrowDown") row = clip(row + step, 0, rows.length - 1);
  else if (step && chart.at) i += step;
  const at = () => points(chart)[row][clip(i, 0, rows[row].length - 1)];
  if (["+", "=", "-"].includes(key)) {
    const {width, height} = u.over.getBoundingClientRect(), {left, top} = at(), part = key === "-" ? 1 : 0.25;
    const ends = (middle, length, name) => [-1, 1].map(side => u.posToVal(clip(middle, 0, length) + side * part * length, name)).sort((a, b) => a - b);
    const to = {x: ends(left, width, "x"), y: ends(top, height, "y")};
    chart.exact = to;
    u.batch(() => ["x", "y"].forEach(name => u.setScale(name, {min: to[name][0], max: to[name][1]})));
  } else if (key === "0" || key === "Escape") { chart.exact = {}; u.setData(u.data); }
  else if (!step) return;
  event.preventDefault();
  u.setCursor({left: at().left, top: at().top || 0}, false);
  point(chart, at());
}

// ---- the page
const blocks = [];
function start(root) {   // draw all pictures inside an element
  for (const node of root.querySelectorAll(".charts:not(.drawn)")) {
    node.classList.add("drawn");
    const data = JSON.parse(node.querySelector(":scope > script").textContent), frames = [...node.querySelectorAll(".chart")];
    const block = {node, data, hidden: new Set(), x: Object.keys(data.axes)[0], patches: css("--patches").split(" ")};
    block.charts = data.charts.map((chart, i) => ({...chart, block, log: chart.y.log, figure: frames[i], plot: frames[i].querySelector(".plot")}));
    blocks.push(block);
    for (const table of node.querySelectorAll(".values")) table.open = false;
    for (const chart of block.charts) {
      draw(chart);
      new ResizeObserver(() => chart.u.width === chart.plot.clientWidth || draw(chart)).observe(chart.plot);
      chart.figure.addEventListener("keydown", event => keyed(chart, event));
      chart.figure.addEventListener("blur", () => point(chart, null));
      chart.figure.querySelector("button.scale")?.addEventListener("click", () => { chart.log = !chart.log; draw(chart); });
    }
    for (const button of node.querySelectorAll("[data-axis]")) button.addEventListener("click", () => {
      for (const other of blocks.filter(each => button.dataset.axis in each.data.axes)) {   // of all problems
        other.x = button.dataset.axis;
        for (const each of other.node.querySelectorAll("[data-axis]")) each.setAttribute("aria-pressed", each.dataset.axis === other.x);
        other.charts.forEach(draw);
      }
    });
    const keys = [...node.querySelectorAll(".legend [data-k]")];
    const hide = hidden => {
      block.hidden = new Set(hidden);
      for (const button of keys) button.setAttribute("aria-pressed", !block.hidden.has(+button.dataset.k));
      for (const {u} of block.charts) u.batch(() => u.series.forEach((s, i) => i && u.setSeries(i, {show: !block.hidden.has(s.k)})));
    };
    for (const button of keys) {
      const k = +button.dataset.k;
      button.addEventListener("click", () => hide(block.hidden.has(k) ? [...block.hidden].filter(other => other !== k) : [...block.hidden, k]));
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => raise(block, block.hidden.has(k) ? undefined : k));
      for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => raise(block));
    }
    node.querySelector(".all")?.addEventListener("click", () => hide([]));
    node.querySelector(".none")?.addEventListener("click", () => hide(keys.map(button => +button.dataset.k)));
  }
}
const redraw = paper => {
  document.documentElement.classList.toggle("paper", paper);
  for (const block of blocks) block.charts.forEach(draw);
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
addEventListener("beforeprint", () => redraw(true));
addEventListener("afterprint", () => redraw(false));
start(document);
