"use strict";
// Which charts a run has, and a board of them that loads, zooms and compares.
const PHASES = ["sync", "generate", "score", "ask", "wait", "train"]; // in the order of a rollout

// [{title, group, names, dotted}] of the curves that a run reports
function chartsOf(names) {
  const there = new Set(names), used = new Set();
  const charts = [];
  const add = (group, title, wanted, options = {}) => {
    const found = wanted.filter((name) => there.has(name) && !used.has(name));
    if (!found.length) return;
    found.forEach((name) => used.add(name));
    charts.push({ group, title, names: found, ...options });
  };
  const like = (pattern) => names.filter((name) => pattern.test(name)).sort();
  const one = (group, name, options) => add(group, titleOf(name), [name], options);
  add("g_training", titleOf("steps/loss"), ["steps/loss", "evals/eval_loss"], { main: true });
  one("g_training", "steps/lr", { fromZero: true, exact: true, main: true });
  one("g_training", "steps/grad_norm", { main: true });
  add("g_rollout", titleOf("steps/reward"), ["steps/reward", "evals/eval_reward"], { main: true });
  add("g_rollout", CURVE_NAMES[settings.language].rewards_by, like(/^steps\/reward\//));
  for (const name of ["kl", "entropy", "completion_length", "truncated"]) one("g_rollout", `steps/${name}`);
  const phases = PHASES.map((phase) => `steps/time/${phase}`).filter((name) => there.has(name));
  if (phases.length > 1) charts.push({ group: "g_rollout", title: CURVE_NAMES[settings.language].timeline, names: phases, kind: TimeLine, exact: true });
  add("g_rollout", CURVE_NAMES[settings.language].phases, phases, { fromZero: true });
  add("g_preference", titleOf("steps/accuracy"), ["steps/accuracy", "evals/eval_accuracy"], { main: true });
  like(/^steps\/(rewards\/|logps\/|margin)/).forEach((name) => add("g_preference", titleOf(name), [name, name.replace("steps/", "evals/eval_")]));
  like(/^evals\//).filter((name) => !/_(runtime|per_second)$/.test(name)).forEach((name) => one("g_evaluation", name, { main: /exact|accurac/.test(name) }));
  one("g_speed", "steps/tokens_per_second", { fromZero: true, main: true });
  one("g_speed", "peaks/memory", { fromZero: true, exact: true, main: true });
  for (const name of ["step_seconds", "data_seconds", "mfu", "of_product"]) one("g_speed", `steps/${name}`, { fromZero: true });
  const terms = like(/^steps\/losses\//);
  if (terms.length > 1) add("g_losses", t("g_losses"), terms);
  else terms.forEach((name) => used.add(name)); // one term is the loss itself
  used.add("steps/epoch"); // a straight line
  one("g_other", "steps/tokens", { exact: true });
  names.forEach((name) => one("g_other", name));
  return charts;
}

class Board {
  // id: the run; only: a filter over charts; view: {x, smoothing, log, zoom, others: [{id, name}]}
  constructor(id, view, only = () => true) {
    Object.assign(this, { id, view, only });
    this.node = el("div");
    this.charts = new Map();
    this.known = "";
  }

  remove() { this.charts.forEach(({ chart }) => chart.remove()); }

  async load(summary) {
    this.summary = summary;
    const wanted = chartsOf(summary.series).filter(this.only);
    this.build(wanted);
    if (!wanted.length) return;
    const names = wanted.flatMap((chart) => chart.names);
    const [from, to] = this.view.zoom || [null, null];
    const width = Math.min(900, Math.max(240, Math.round(this.node.clientWidth / (this.node.clientWidth > 860 ? 2 : 1))));
    const query = { x: this.view.x, from, to, buckets: width };
    const runs = [{ id: this.id, name: summary.name }, ...this.view.others];
    const stamp = (this.stamp = (this.stamp || 0) + 1);
    const loaded = await Promise.all(runs.map(async (run) => ({ ...run, series: await source.series(run.id, names, query).catch(() => ({})) })));
    if (stamp === this.stamp) this.fill(wanted, loaded);
  }

  build(wanted) {
    const known = JSON.stringify([wanted.map((c) => [c.group, c.title]), settings.language]);
    if (known === this.known) return;
    this.known = known;
    this.remove();
    this.charts.clear();
    const groups = Map.groupBy ? Map.groupBy(wanted, (c) => c.group) : wanted.reduce((m, c) => m.set(c.group, [...(m.get(c.group) || []), c]), new Map());
    const sections = [...groups].map(([group, charts]) => {
      const cards = charts.map((spec) => {
        const chart = new (spec.kind || Chart)({ title: spec.title, format: valueOf(spec.names[0]), fromZero: spec.fromZero, heading: this.plain ? "h2" : "h3", onzoom: (range) => this.zoom(range) });
        this.charts.set(spec.title + spec.names[0], { chart, spec });
        return chart.node;
      });
      return el("section.group", {}, this.plain ? "" : el("h2", {}, t(group)), el("div.grid", {}, cards));
    });
    const flat = () => el("div.grid", {}, [...this.charts.values()].map(({ chart }) => chart.node));
    this.node.replaceChildren(...(this.plain ? [flat()] : sections));
    if (!wanted.length) this.node.replaceChildren(el("p.empty", {}, t("no_curves")));
  }

  fill(wanted, loaded) {
    const comparing = loaded.length > 1;
    for (const { chart, spec } of this.charts.values()) {
      const curves = [];
      loaded.forEach((run, r) => spec.names.forEach((name, n) => {
        const points = run.series[name];
        if (!points) return;
        const own = name.startsWith("evals/") && spec.names.length > 1 ? t("held_out") : spec.names.length > 1 && name.split("/").length > 2 ? name.split("/").pop() : titleOf(name);
        const label = comparing ? run.name + (spec.names.length > 1 ? ` · ${own}` : "") : own;
        curves.push({ name, label, points, colour: (comparing ? r : n) % 8, dots: name.startsWith("evals/") && points.x.length < 120 });
      }));
      const plan = spec.names[0] === "peaks/memory" ? memoryPlan(this.summary) : null;
      const planned = plan ? [plan] : [];
      chart.update({ curves, lines: planned, smoothing: spec.exact ? 0 : this.view.smoothing, log: this.view.log, byTime: this.view.x === "elapsed", zoom: this.view.zoom, restarts: this.view.x === "step" ? this.summary.restarts : [] });
    }
  }

  // The last value of a curve as its chart draws it; null without one
  value(name) {
    for (const { chart } of this.charts.values()) {
      const curve = chart.curves.find((c) => c.name === name && c.points.x.length);
      if (curve) return chart.lastOf(curve);
    }
    return null;
  }

  zoom(range) {
    const last = this.summary.step || 1;
    this.view.zoom = range && (this.view.x === "elapsed" ? range : [Math.max(0, range[0]), Math.min(last, range[1])]);
    if (this.view.zoom && this.view.zoom[0] <= 0 && this.view.zoom[1] >= last && this.view.x === "step") this.view.zoom = null;
    this.view.onchange?.();
    this.load(this.summary);
  }
}
