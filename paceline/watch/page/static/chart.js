"use strict";
// One chart: curves over steps or time as SVG, with hover, keys, zoom and smoothing.
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 210, PAD = { left: 58, right: 10, top: 8, bottom: 22 };

function svg(name, properties, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// Exponential mean without the pull of its start; the weight is that of one of about 200 points
function smoothed(values, amount) {
  if (!amount || values.length < 3) return values;
  const keep = amount ** (200 / Math.max(200, values.length));
  let sum = 0, weight = 0;
  return values.map((value) => { sum = keep * sum + (1 - keep) * value; weight = keep * weight + (1 - keep); return sum / weight; });
}

class Chart {
  // curves: [{name, label, colour, points: {x, mean, low, high, lost}, dots}], lines: [{value, label}]
  constructor(options) {
    Object.assign(this, { curves: [], lines: [], restarts: [], smoothing: 0, log: false, byTime: false, format: number, heading: "h3", onzoom: null }, options);
    this.at = null;
    this.last = el("span.last");
    this.body = el("div");
    this.tip = el("div.tip", { hidden: true, "aria-hidden": "true" });
    this.legend = el("ul.legend");
    this.node = el("section.card.chart", {}, el("div.head", {}, el(this.heading, {}, this.title), this.last), this.body, this.tip, this.legend);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.body);
  }

  update(changes) { Object.assign(this, changes); this.draw(); }
  remove() { this.watcher.disconnect(); }
  xText(x) { return this.byTime ? duration(x) : whole(x); }

  ranges(shown) {
    const xs = shown.flatMap((c) => (c.points.x.length ? [c.points.x[0], c.points.x[c.points.x.length - 1]] : []));
    let [x0, x1] = this.zoom || [Math.min(...xs), Math.max(...xs)];
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    const ends = { low: Infinity, high: -Infinity };
    const take = (v) => { if (!this.log || v > 0) { ends.low = Math.min(ends.low, v); ends.high = Math.max(ends.high, v); } };
    for (const { points } of shown) for (const list of [points.mean, points.low, points.high]) list.forEach(take);
    this.lines.forEach((line) => take(line.value));
    let [y0, y1] = [ends.low, ends.high].map((v) => (this.log ? Math.log10(v) : v));
    const space = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
    if (this.fromZero && !this.log) y0 = Math.min(0, y0);
    else if (this.log || y0 < 0 || y0 - space > 0) y0 -= space;
    else y0 = Math.max(0, y0 - space);
    // A plan's line on top has room for its label above it, away from the curves
    const top = !this.log && this.lines.some((line) => line.value >= ends.high);
    return { x0, x1, y0, y1: y1 + (top ? Math.max(space, (y1 - y0) * 0.16) : space) };
  }

  draw() {
    const width = Math.max(200, this.body.clientWidth);
    const shown = this.curves.filter((c) => c.points && c.points.x.length && (!this.log || c.points.mean.some((v) => v > 0)));
    this.drawLegend(shown);
    if (!shown.length) {
      const lost = this.curves.some((c) => c.points && c.points.lost.length);
      this.body.replaceChildren(el("p.none", {}, lost ? t("not_finite", this.xText(this.curves.find((c) => c.points?.lost.length).points.lost[0])) : t("no_points")));
      return;
    }
    const { x0, x1, y0, y1 } = this.ranges(shown);
    const inner = { w: width - PAD.left - PAD.right, h: HEIGHT - PAD.top - PAD.bottom };
    this.px = (x) => PAD.left + ((x - x0) / (x1 - x0)) * inner.w;
    this.ix = (p) => x0 + ((p - PAD.left) / inner.w) * (x1 - x0);
    this.py = (y) => PAD.top + (1 - ((this.log ? Math.log10(Math.max(y, 1e-300)) : y) - y0) / (y1 - y0)) * inner.h;
    this.range = [x0, x1];
    const clip = "clip" + (Chart.counter = (Chart.counter || 0) + 1);
    const marks = svg("g", { "clip-path": `url(#${clip})` });
    const canvas = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, tabindex: "0", role: "img", "aria-label": this.describe(shown) },
      svg("clipPath", { id: clip }, svg("rect", { x: PAD.left - 4, y: 0, width: inner.w + 8, height: HEIGHT - PAD.bottom + 1 })),
      ...this.axes(x0, x1, y0, y1, width, inner), marks);
    for (const restart of this.restarts) marks.append(svg("line", { class: "restart", x1: this.px(restart), x2: this.px(restart), y1: PAD.top, y2: HEIGHT - PAD.bottom }));
    shown.forEach((curve) => this.drawCurve(marks, curve, shown.length === 1));
    for (const line of this.lines) {
      const y = this.py(line.value);
      marks.append(svg("line", { class: "plan", x1: PAD.left, x2: width, y1: y, y2: y }));
      const label = svg("text", { class: "planned", x: width - PAD.right - 4, y: y < 24 ? y + 14 : y - 5, "text-anchor": "end" });
      label.textContent = line.label;
      marks.append(label);
    }
    this.cursor = svg("line", { class: "cursor", y1: PAD.top, y2: HEIGHT - PAD.bottom, visibility: "hidden" });
    this.selection = svg("rect", { class: "selection", y: PAD.top, height: inner.h, width: 0 });
    marks.append(this.cursor, this.selection);
    this.listen(canvas, shown);
    const focused = this.body.contains(document.activeElement);
    this.body.replaceChildren(canvas);
    if (focused) canvas.focus({ preventScroll: true });
    if (this.at !== null) this.show(this.at, shown, width);
  }

  axes(x0, x1, y0, y1, width, inner) {
    const parts = [];
    const unit = this.format === bytes && !this.log ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(y1, 1)) / Math.log(1024))) : 1;
    const values = this.log ? ticks(y0, y1, 4).map((v) => 10 ** v) : ticks(y0 / unit, y1 / unit, 6).map((v) => v * unit);
    for (const value of values) {
      const y = this.py(value);
      parts.push(svg("line", { class: "gridline", x1: PAD.left, x2: width - PAD.right, y1: y, y2: y }));
      const label = svg("text", { x: PAD.left - 7, y: y + 4, "text-anchor": "end" });
      label.textContent = this.format(value);
      parts.push(label);
    }
    const scale = this.byTime ? [1, 60, 3600, 86400].filter((u) => x1 - x0 >= 3 * u).pop() || 1 : 1;
    for (const value of ticks(x0 / scale, x1 / scale, Math.max(3, Math.min(9, inner.w / 62)))) {
      if (!this.byTime && !Number.isInteger(value)) continue;
      const x = this.px(value * scale);
      const label = svg("text", { x, y: HEIGHT - 6, "text-anchor": x > width - 40 ? "end" : x < PAD.left + 10 ? "start" : "middle" });
      label.textContent = this.xText(value * scale);
      parts.push(label);
    }
    parts.push(svg("line", { class: "axis", x1: PAD.left, x2: width - PAD.right, y1: HEIGHT - PAD.bottom, y2: HEIGHT - PAD.bottom }));
    return parts;
  }

  drawCurve(marks, { points, colour, dots }, alone) {
    const path = (values) => values.map((v, i) => (this.log && v <= 0 ? "" : `${i && !(this.log && values[i - 1] <= 0) ? "L" : "M"}${this.px(points.x[i]).toFixed(1)} ${this.py(v).toFixed(1)}`)).join("");
    if (points.low.length) {
      const back = points.x.map((x, i) => `L${this.px(x).toFixed(1)} ${this.py(points.low[i]).toFixed(1)}`).reverse().join("");
      marks.append(svg("path", { class: `band f${colour}`, d: path(points.high) + back + "Z" }));
    }
    const line = smoothed(points.mean, dots ? 0 : this.smoothing);
    if (line !== points.mean) marks.append(svg("path", { class: `raw c${colour}`, d: path(points.mean) }));
    if (alone && !this.log && points.x.length > 1) marks.append(svg("path", { class: `area f${colour}`, d: `${path(line)}V${HEIGHT - PAD.bottom}H${this.px(points.x[0]).toFixed(1)}Z` }));
    marks.append(svg("path", { class: `curve c${colour}`, d: path(line) }));
    if (dots || points.x.length === 1) for (const [i, x] of points.x.entries()) marks.append(svg("circle", { class: `f${colour}`, cx: this.px(x), cy: this.py(points.mean[i]), r: 3 }));
    for (const x of points.lost) {
      const p = this.px(x), y = HEIGHT - PAD.bottom - 6;
      marks.append(svg("path", { class: "lost", d: `M${p - 4} ${y - 4}l8 8m0-8l-8 8` }));
    }
  }

  // The last value as drawn
  lastOf(curve) { return smoothed(curve.points.mean, curve.dots ? 0 : this.smoothing).at(-1); }

  drawLegend(shown) {
    this.last.textContent = shown.length === 1 ? this.format(this.lastOf(shown[0])) : "";
    const entry = (c) => el("li", {}, el(`span.dot.f${c.colour}`), `${c.label} ${this.format(this.lastOf(c))}`);
    this.legend.replaceChildren(...(shown.length > 1 ? shown.map(entry) : []));
  }

  describe(shown) {
    const { points } = shown[0];
    return t("chart_label", this.title, this.format(points.mean.at(-1)), this.xText(points.x[0]), this.xText(points.x.at(-1)));
  }

  nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (low < high) { const mid = (low + high) >> 1; if (xs[mid] < x) low = mid + 1; else high = mid; }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  show(x, shown, width) {
    this.at = x;
    const base = shown[0].points;
    const at = base.x[this.nearest(base.x, x)], p = this.px(at);
    this.cursor.setAttribute("x1", p);
    this.cursor.setAttribute("x2", p);
    this.cursor.setAttribute("visibility", "visible");
    const rows = shown.map((c) => {
      const i = this.nearest(c.points.x, at);
      const spread = c.points.low.length ? ` (${this.format(c.points.low[i])} – ${this.format(c.points.high[i])})` : "";
      return [c, `${shown.length > 1 ? c.label + " " : ""}${this.format(c.points.mean[i])}${spread}`];
    });
    const head = this.byTime ? duration(at) : `${t("step")} ${whole(Math.round(at))}`;
    this.tip.replaceChildren(el("b", {}, head), ...rows.map(([c, text]) => el("div", {}, el(`span.dot.f${c.colour}`), text)));
    this.tip.hidden = false;
    const top = this.body.offsetTop + 6, left = this.body.offsetLeft;
    this.tip.style.top = `${top}px`;
    const room = this.tip.offsetWidth;
    this.tip.style.left = `${left + Math.max(0, p + room + 14 > width ? p - room - 10 : p + 10)}px`;
    return `${head}: ${rows.map(([, text]) => text).join(", ")}`;
  }

  hide() { this.at = null; this.tip.hidden = true; this.cursor?.setAttribute("visibility", "hidden"); }

  listen(canvas, shown) {
    const place = (event) => { const box = canvas.getBoundingClientRect(); return Math.min(Math.max(event.clientX - box.left, PAD.left), box.width - PAD.right); };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) { from = place(event); canvas.setPointerCapture(event.pointerId); } });
    canvas.addEventListener("pointermove", (event) => {
      const p = place(event);
      this.show(this.ix(p), shown, canvas.clientWidth);
      if (from !== null) { this.selection.setAttribute("x", Math.min(from, p)); this.selection.setAttribute("width", Math.abs(p - from)); }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const p = place(event), ends = [Math.min(from, p), Math.max(from, p)];
      from = null;
      this.selection.setAttribute("width", 0);
      if (ends[1] - ends[0] > 6) this.onzoom?.(ends.map(this.ix));
    });
    canvas.addEventListener("pointerleave", () => { if (from === null) this.hide(); });
    canvas.addEventListener("blur", () => this.hide());
    canvas.addEventListener("dblclick", () => this.onzoom?.(null));
    canvas.addEventListener("keydown", (event) => this.key(event, shown, canvas));
  }

  key(event, shown, canvas) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { x } = shown[0].points, [x0, x1] = this.range;
    const now = this.at === null ? x.length - 1 : this.nearest(x, this.at);
    const move = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 20, PageDown: now + 20, Home: 0, End: x.length - 1 }[event.key];
    const width = x1 - x0, middle = this.at ?? (x0 + x1) / 2;
    if (move !== undefined) {
      const said = this.show(x[Math.min(x.length - 1, Math.max(0, this.at === null && event.key === "ArrowRight" ? now : move))], shown, canvas.clientWidth);
      document.getElementById("live").textContent = said;
    } else if (event.key === "+" || event.key === "=") this.onzoom?.([middle - width / 4, middle + width / 4]);
    else if (event.key === "-") this.onzoom?.([middle - width, middle + width]);
    else if (event.key === "0" || event.key === "Escape") { this.hide(); this.onzoom?.(null); }
    else return;
    event.preventDefault();
  }
}

// The last rollouts as bars, a row each: how long every phase took, in the order of a rollout.
class TimeLine extends Chart {
  draw() {
    const width = Math.max(200, this.body.clientWidth);
    const shown = this.curves.filter((c) => c.points?.x.length);
    this.drawLegend(shown);
    const steps = [...new Set(shown.flatMap((c) => c.points.x))].sort((a, b) => a - b).slice(-TimeLine.ROWS);
    if (!steps.length) return this.body.replaceChildren(el("p.none", {}, t("no_points")));
    const seconds = (curve, step) => curve.points.mean[curve.points.x.indexOf(step)] || 0;
    const longest = Math.max(...steps.map((step) => shown.reduce((sum, curve) => sum + seconds(curve, step), 0))) || 1;
    const scale = (width - PAD.left - PAD.right) / longest;
    const height = PAD.top + steps.length * TimeLine.ROW + PAD.bottom;
    const canvas = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${this.title}: ${shown.map((c) => `${c.label} ${this.format(c.points.mean.at(-1))}`).join(", ")}` });
    const text = (content, x, y, anchor) => { const label = svg("text", { x, y, "text-anchor": anchor }); label.textContent = content; canvas.append(label); };
    for (const value of ticks(0, longest, 5)) {
      const x = PAD.left + value * scale;
      canvas.append(svg("line", { class: "gridline", x1: x, x2: x, y1: PAD.top, y2: height - PAD.bottom }));
      text(this.format(value), x, height - 6, x > width - 40 ? "end" : "middle");
    }
    steps.forEach((step, row) => {
      let x = PAD.left;
      const y = PAD.top + row * TimeLine.ROW;
      text(this.xText(step), PAD.left - 7, y + TimeLine.ROW - 5, "end");
      for (const curve of shown) {
        const wide = seconds(curve, step) * scale;
        const bar = svg("rect", { class: `f${curve.colour}`, x, y: y + 2, width: wide, height: TimeLine.ROW - 4 });
        const tip = svg("title", {});
        tip.textContent = `${curve.label} ${this.format(seconds(curve, step))}`;
        bar.append(tip);
        canvas.append(bar);
        x += wide;
      }
    });
    this.body.replaceChildren(canvas);
  }
}
TimeLine.ROWS = 10;
TimeLine.ROW = 17; // pixels
