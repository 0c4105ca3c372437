"use strict";
// The page: which run and part are open (in the address), what is loaded when, and the controls.
const TABS = ["overview", "curves", "samples", "findings", "plan", "config", "checkpoints", "logs"];
const REFRESH = 2500;
const view = { x: "step", smoothing: 0.6, log: false, zoom: null, others: [] };
const forms = { config: { filter: "", onlySet: true }, logs: { name: "training.log", search: "" } };
const main = document.getElementById("main");
let open = { run: null, tab: "overview", board: null, summary: null, findings: { findings: [], exits: [], left_out: 0 } };
let timer = null, failures = 0, visit = 0;

function route() {
  const [, run, tab] = location.hash.split("/");
  return { run: run || null, tab: TABS.includes(tab) ? tab : "overview" };
}

function header(name) {
  const choice = (label, value, options, change) => el("select", { "aria-label": label, onchange: (e) => change(e.target.value) }, options.map(([v, text]) => el("option", { value: v, selected: v === value }, text)));
  const language = choice(t("language"), settings.language, [["en", "English"], ["zh", "中文"]], (v) => { settings.set("language", v); show(true); });
  const theme = choice(t("theme"), settings.theme, ["auto", "light", "dark"].map((v) => [v, t(v)]), (v) => settings.set("theme", v));
  const where = source.live ? name : t("report", moment(source.written));
  document.getElementById("skip").textContent = t("skip");
  document.getElementById("top").replaceChildren(el("div.bar", {}, el("a.brand", { href: "#/" }, mark(), "Paceline"), el("span.where", {}, where || ""), language, theme));
}

function mark() {
  return svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: "M1 13 6 6l3 4 6-8" }));
}

async function show(anew = false) {
  clearTimeout(timer);
  const mine = ++visit;
  const { run, tab } = route();
  try {
    if (!run) await showRuns(mine);
    else await showRun(run, tab, mine, anew || run !== open.run || tab !== open.tab);
    failures = 0;
    document.getElementById("lost")?.remove();
  } catch (error) {
    if (mine === visit) lost(error);
  }
  reachable();
  if (mine === visit && source.live) timer = setTimeout(() => (document.hidden ? (timer = setTimeout(show, REFRESH)) : show()), next());
}

// What scrolls sideways can be reached by keys
function reachable() {
  for (const node of document.querySelectorAll(".scroll")) {
    if (node.scrollWidth > node.clientWidth || node.tagName === "PRE") node.tabIndex = 0;
    else node.removeAttribute("tabindex");
  }
}

function next() {
  if (failures) return Math.min(15000, REFRESH * failures);
  const s = open.summary;
  if (open.run && s) return s.indexed < 1 ? 50 : s.live ? REFRESH : 4 * REFRESH;
  return REFRESH;
}

function lost(error) {
  failures++;
  console.warn(error);
  if (!document.getElementById("lost")) main.prepend(el("p.empty", { id: "lost", role: "alert" }, t("lost_contact")));
}

async function showRuns(mine) {
  const data = await source.runs();
  if (mine !== visit) return;
  if (data.runs.length === 1 && !open.run && !location.hash) { location.replace(`#/${data.runs[0].id}/overview`); return; }
  leave();
  open.run = null;
  document.title = `${t("runs")} · Paceline`;
  header(data.root);
  const scroll = main.querySelector(".scroll")?.scrollLeft || 0, focused = document.activeElement?.getAttribute("href");
  main.replaceChildren(el("h1", {}, t("runs")), el("p.meta", {}, stateCounts(data.runs)), el("div.group", {}, runsTable(data)));
  if (scroll) main.querySelector(".scroll").scrollLeft = scroll;
  if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function leave() { open.board?.remove(); open.board = null; }

async function showRun(run, tab, mine, anew) {
  const s = await source.summary(run);
  if (mine !== visit) return;
  if (s.state.name === "failed" || tab === "findings" || anew) open.findings = await source.part(run, "findings");
  if (mine !== visit) return;
  const build = anew || open.run !== run;
  if (open.run !== run) { view.zoom = null; view.others = []; forms.logs = { name: "training.log", search: "" }; }
  open = { ...open, run, tab, summary: s };
  document.title = `${s.name} · ${t("s_" + s.state.name)}`;
  const focused = build && document.activeElement?.getAttribute("role") === "tab";
  if (build) { leave(); header(s.path); main.replaceChildren(el("div", { id: "head" }), tabs(run, tab), el("div", { id: "part", role: "tabpanel", tabindex: "-1", "aria-labelledby": `tab-${tab}` }, el("p.note", {}, t("loading")))); }
  if (build) selectedTab(focused);
  document.getElementById("head").replaceChildren(...head(s));
  document.querySelectorAll("[data-count]").forEach((node) => { node.textContent = counts()[node.dataset.count] || ""; node.hidden = !node.textContent; });
  await PARTS[tab](document.getElementById("part"), s, build, mine);
}

function head(s) {
  const errors = open.findings.findings.filter((f) => f.is_error);
  const [text, todo] = sentence(s, errors);
  return [el("div.headline", {}, el("h1", {}, s.name), badge(s.state.name)), el("p.sentence", {}, text), todo ? el("p.todo", {}, el("b", {}, t("do") + " "), todo) : "",
    el("p.meta", {}, jobLine(s)), s.total_steps ? progressBar(s) : "", s.indexed < 1 ? el("p.note", { role: "status" }, t("indexing", percent(Math.floor(s.indexed * 100) / 100))) : ""].filter(Boolean);
}

function counts() {
  return { findings: open.findings.findings.length, checkpoints: open.summary?.num_checkpoints, samples: open.summary?.num_samples };
}

function tabs(run, tab) {
  const link = (name) => el("a", { href: `#/${run}/${name}`, id: `tab-${name}`, role: "tab", "aria-selected": String(name === tab), "aria-controls": "part", tabindex: name === tab ? "0" : "-1" }, t(name), ["findings", "checkpoints", "samples"].includes(name) ? el("span.count", { "data-count": name, hidden: true }) : "");
  return el("div.tabs", { role: "tablist", "aria-label": t("sections"), onkeydown: tabKey }, TABS.map(link));
}

// The arrow keys open the tab beside, as the tab pattern of ARIA asks
function tabKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  const all = [...document.querySelectorAll(".tabs [role=tab]")], now = all.indexOf(document.activeElement);
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: all.length - 1, " ": now }[event.key];
  if (to === undefined || now < 0) return;
  event.preventDefault();
  const tab = all[(to + all.length) % all.length];
  tab.focus();
  tab.click();
}

// Show the selected tab, and keep the focus on the tabs where it was there
function selectedTab(focused) {
  const tab = document.querySelector(".tabs [aria-selected=true]");
  tab.scrollIntoView({ block: "nearest", inline: "center" });
  if (focused) tab.focus({ preventScroll: true });
}

function tools(board) {
  const again = () => board.load(open.summary);
  const range = el("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: String(view.smoothing), "aria-label": t("smoothing"), oninput: (e) => { view.smoothing = Number(e.target.value); again(); } });
  const axis = el("select", { "aria-label": t("x_axis"), onchange: (e) => { view.x = e.target.value; view.zoom = null; view.onchange(); again(); } }, [["step", "by_step"], ["elapsed", "by_time"]].map(([v, text]) => el("option", { value: v, selected: v === view.x }, t(text))));
  const log = el("input", { type: "checkbox", checked: view.log, onchange: (e) => { view.log = e.target.checked; again(); } });
  const reset = el("button", { type: "button", disabled: !view.zoom, onclick: () => board.zoom(null) }, t("reset"));
  view.onchange = () => { reset.disabled = !view.zoom; };
  const parts = [el("label", {}, t("smoothing"), range), el("label", {}, t("x_axis"), axis), el("label", {}, log, t("log_scale")), reset];
  if (source.live) parts.push(compareMenu(again));
  return el("div.tools", {}, parts);
}

function compareMenu(again) {
  const list = el("div");
  const fill = async () => {
    const { runs } = await source.runs();
    const box = (row) => el("label", {}, el("input", { type: "checkbox", checked: view.others.some((o) => o.id === row.id), onchange: async (e) => {
      view.others = e.target.checked ? [...view.others, { id: row.id, name: row.name }].slice(0, 7) : view.others.filter((o) => o.id !== row.id);
      for (let s = { indexed: 0 }; e.target.checked && s.indexed < 1;) s = await source.summary(row.id);
      again();
    } }), row.name);
    const others = runs.filter((row) => row.id !== open.run);
    list.replaceChildren(...(others.length ? others.map(box) : [el("span.note", {}, t("none"))]));
  };
  return el("details.menu", { ontoggle: (e) => { if (e.target.open) fill(); } }, el("summary", {}, t("compare")), list);
}

const PARTS = {
  async overview(node, s, build) {
    if (build || !open.board) {
      leave();
      open.board = new Board(s.id, view, (chart) => chart.main);
      open.board.plain = true;
      node.replaceChildren(el("div", { id: "tiles" }), open.board.node, el("div", { id: "late" }), el("div", { id: "use" }));
    }
    const board = open.board;
    document.getElementById("tiles").replaceChildren(tiles(s, board.value("steps/loss")));
    document.getElementById("late").replaceChildren(slowest(s));
    document.getElementById("use").replaceChildren(timeUse(s));
    await board.load(s);
    document.getElementById("tiles")?.replaceChildren(tiles(s, board.value("steps/loss")));
  },
  async curves(node, s, build) {
    if (build || !open.board) {
      leave();
      open.board = new Board(s.id, view);
      node.replaceChildren(tools(open.board), el("p.note", {}, t("zoom_hint")), open.board.node);
    }
    await open.board.load(s);
  },
  async samples(node, s, build, mine) {
    if (!build && open.shown === s.num_samples) return;
    open.shown = s.num_samples;
    const data = await source.part(s.id, "samples");
    if (mine !== visit) return;
    if (!data.groups.length) { node.replaceChildren(el("p.empty", {}, t("no_samples"))); return; }
    const list = el("div", {}, data.groups.map(sampleGroup));
    let before = data.before;
    const older = el("button", { type: "button", hidden: !source.live || !before, onclick: async () => {
      const more = await source.part(s.id, "samples", { before });
      before = more.before;
      list.append(...more.groups.map(sampleGroup));
      older.hidden = !before;
    } }, t("older"));
    node.replaceChildren(tokenKey(data.groups), list, el("p", {}, older));
  },
  async findings(node, s, build) { if (build || s.live) node.replaceChildren(findingsView(open.findings)); },
  async plan(node, s, build) { if (build) node.replaceChildren(planView(await source.part(s.id, "plan"))); },
  async config(node, s, build) { if (build) node.replaceChildren(configView(await source.part(s.id, "config"), forms.config)); },
  async checkpoints(node, s, build) {
    if (build || open.saved !== s.num_checkpoints) node.replaceChildren(checkpointsView(await source.part(s.id, "checkpoints")));
    open.saved = s.num_checkpoints;
  },
  async logs(node, s, build) {
    if (build) await buildLogs(node, s);
    else if (s.live && open.logsAtEnd?.()) await open.readLog();
  },
};

async function buildLogs(node, s) {
  const names = await source.part(s.id, "logs");
  if (!names.length) { node.replaceChildren(el("p.empty", {}, t("no_logs"))); return; }
  const form = forms.logs;
  if (!names.some((row) => row.name === form.name)) form.name = names[0].name;
  const lines = el("pre.log", { tabindex: "0", "aria-label": t("log"), role: "region" }), count = el("span.note", { role: "status" });
  let before = 0;
  const older = el("button", { type: "button", onclick: async () => {
    const more = await source.part(s.id, "log", { ...form, before });
    before = more.before;
    lines.prepend(...logLines(more.lines, form.search));
    older.hidden = !before;
  } }, t("show_older"));
  open.readLog = async () => {
    const page = await source.part(s.id, "log", form);
    before = page.before;
    older.hidden = !before;
    lines.replaceChildren(...(page.lines.length ? logLines(page.lines, form.search) : [t("no_lines")]));
    count.textContent = t("lines_shown", whole(page.lines.length));
    lines.scrollTop = lines.scrollHeight;
  };
  open.logsAtEnd = () => lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40 && String(getSelection()) === "";
  const pick = el("select", { "aria-label": t("log"), onchange: (e) => { form.name = e.target.value; open.readLog(); } }, names.map((row) => el("option", { value: row.name, selected: row.name === form.name }, `${row.name} (${bytes(row.bytes)})`)));
  let typing = null;
  const search = el("input", { type: "search", value: form.search, placeholder: t("search"), "aria-label": t("search"), oninput: (e) => { form.search = e.target.value; clearTimeout(typing); typing = setTimeout(open.readLog, 200); } });
  node.replaceChildren(el("div.tools", {}, pick, search, older, count), lines);
  await open.readLog();
}

settings.load();
header("");
addEventListener("hashchange", () => show(true));
addEventListener("resize", reachable);
document.addEventListener("visibilitychange", () => { if (!document.hidden) show(); });
show(true);
