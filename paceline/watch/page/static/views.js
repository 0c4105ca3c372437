"use strict";
// The parts of a run's page: each takes what the source gave and returns elements.
const badge = (state) => el(`span.badge.s-${state}`, {}, t("s_" + state));

function progressBar(row, thin) {
  const share = row.total_steps ? Math.min(1, row.step / row.total_steps) : 0;
  const fill = el("span");
  fill.style.width = `${100 * share}%`;
  return el(`div.progress.s-${row.state.name}` + (thin ? ".thin" : ""), { role: "progressbar", "aria-label": t("progress"), "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(100 * share)) }, fill);
}

function jobLine(row) {
  const size = row.parameters ? t("parameters", compact(row.parameters)) : "";
  const count = row.world_size ? (row.world_size === 1 ? t("process_1") : t("process_n", whole(row.world_size))) : "";
  return [row.algorithm, row.strategy, row.model.split("/").slice(-2).join("/"), size, count, row.device, row.precision].filter(Boolean).join(" · ");
}

function stateCounts(runs) {
  const count = new Map();
  for (const { state } of runs) count.set(state.name, (count.get(state.name) || 0) + 1);
  return [...count].map(([name, n]) => `${whole(n)} ${t("s_" + name)}`).join(" · ");
}

function runsTable({ runs, root }) {
  if (!runs.length) return el("p.empty", {}, t("no_runs", root));
  const rows = runs.map((row) => el("tr", {},
    el("td.wrap", {}, el("a.name", { href: `#/${row.id}/overview` }, row.name), el("div.note", {}, jobLine({ model: "", ...row }))),
    el("td", {}, badge(row.state.name)),
    el("td.num", { "data-label": t("step") }, row.total_steps ? `${whole(row.step)} / ${whole(row.total_steps)}` : row.step ? whole(row.step) : "–", row.total_steps ? progressBar(row, true) : ""),
    el("td.num", { "data-label": t("loss") }, number(row.loss)),
    el("td.num", { "data-label": t("speed") }, row.tokens_per_second ? number(Math.round(row.tokens_per_second)) : "–"),
    el("td.num", { "data-label": t("changed") }, row.changed ? t("ago", duration(Math.max(0, Date.now() / 1000 - row.changed))) : "–")));
  const heads = ["name", "state", "step", "loss", "speed", "changed"];
  return el("div.card.scroll", {}, el("table.runs.stack", {}, el("thead", {}, el("tr", {}, heads.map((head, i) => el(i > 1 ? "th.num" : "th", { scope: "col" }, t(head))))), el("tbody", {}, rows)));
}

// One clear sentence, and what to do where something can be done
function sentence(s, errors) {
  const step = whole(s.step), total = s.total_steps ? whole(s.total_steps) : null;
  const resume = el("code", {}, `paceline train CONFIG --resume latest`);
  switch (s.state.name) {
    case "running": {
      const share = total ? t("running_of", step, total, percent(s.step / s.total_steps)) : t("running", step);
      return [share + (s.eta_seconds !== null && s.eta_seconds !== undefined ? " " + t("eta", duration(s.eta_seconds)) : ""), null];
    }
    case "starting": return [t("starting", duration(s.state.seconds)), null];
    case "quiet": return [t("quiet", step, duration(s.state.seconds), s.state.phase), [t("do_quiet")]];
    case "paused": return [t("paused", step), [t("do_paused", "PID")]];
    case "failed": return [errors.length ? t("failed", step, errors[0].what) : t("failed_plain", step), errors.length && errors[0].hint ? [errors[0].hint] : null];
    case "vanished": return [t("vanished", step, duration(s.state.seconds)) + (s.state.process === "missing" ? " " + t("cause_missing") : ""), [t("do_vanished"), " ", resume]];
    case "stopped": return [t("stopped", step, duration(s.seconds)), [t("do_stopped"), " ", resume]];
    default: return [t(s.state.name, step, duration(s.seconds)), null];
  }
}

// loss: the chart's smoothed value; without one, the median of the last steps
function tiles(s, loss = null) {
  const tile = (name, value, small) => el("div.tile", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, small || "")));
  const use = s.mfu !== null ? `${t("utilisation")} ${percent(s.mfu)}` : s.of_product !== null ? `${percent(s.of_product)} ${t("of_product")}` : "";
  const alive = s.ranks.alive === s.ranks.count ? t("all_alive") : t("n_alive", whole(s.ranks.alive), whole(s.ranks.count));
  return el("dl.tiles", {},
    tile(t("step"), whole(s.step), s.total_steps ? t("of", whole(s.total_steps)) : ""),
    tile(t("loss"), number(loss ?? s.loss), s.loss === null ? "" : t(loss === null ? "recent" : "smoothed")),
    tile(t("time"), duration(s.seconds), s.restarts.length ? t("resumed", s.restarts.length) : s.step_seconds ? t("per_step", number(s.step_seconds) + " s") : ""),
    tile(t("throughput"), s.tokens_per_second ? number(Math.round(s.tokens_per_second)) : "–", [t("per_second"), use].filter(Boolean).join(" · ")),
    tile(t("tokens"), number(s.tokens), s.skipped ? t("skipped", whole(s.skipped)) : ""),
    tile(t("memory"), s.memory.peak ? bytes(s.memory.peak) : "–", memoryPlan(s)?.label || ""),
    tile(t("processes"), whole(s.ranks.count), s.live ? alive : ""));
}

// What the whole run's time went to, from result.json; before an orderly end, what the ranks have written so far
function timeUse(s) {
  const use = s.result.effective_time || {}, bands = s.result.time_bands || s.bands || {};
  const kinds = ["useful", "startup", "data", "save", "evaluation", "lost", "skipped", "idle", "other"].filter((kind) => use[`${kind}_seconds`] > 0);
  const rows = kinds.map((kind) => el("tr", {}, el("td", {}, t(`use_${kind}`)), el("td.num", {}, duration(use[`${kind}_seconds`])), el("td.num", {}, percent(use[`${kind}_seconds`] / use.seconds))));
  const listed = (value) => Array.isArray(value) ? value : [];
  const losses = listed(use.losses).map((loss) => el("li", {}, t("use_loss", whole(loss.step), whole(loss.back_to), loss.cause)));
  const late = listed(bands.stragglers).map((rank) => el("li", {}, t("use_straggler", rank.rank, number(rank.percent))));
  const waits = bands.seconds ? el("li", {}, t("use_bands", percent(bands.compute / bands.seconds), percent(bands.wait / bands.seconds), percent(bands.data / bands.seconds))) : "";
  if (!use.seconds) return waits ? el("section.card", {}, el("h2", {}, t("use_so_far")), el("ul", {}, waits)) : "";
  return el("section.card.scroll", {}, el("h2", {}, t("use", percent(use.share))), table(["part", "time", "share"], rows, [1, 2]), el("ul", {}, waits, late, losses));
}

// What the plan expects of a process in all; where that is not known, its model states
function memoryPlan(s) {
  if (s.memory.planned) return { value: s.memory.planned, label: t("memory_whole", bytes(s.memory.planned)) };
  const states = Object.values(s.memory.states).reduce((a, b) => a + b, 0);
  return states ? { value: states, label: t("memory_plan", bytes(states)) } : null;
}

function slowest(s) {
  if (!s.live || !s.ranks.slowest.length || s.ranks.count === 1) return "";
  const late = s.ranks.slowest.filter((beat) => beat.behind);
  const rows = (late.length ? late : s.ranks.slowest).map((beat) => el("tr", {}, el("td.num", {}, beat.rank), el("td.num", {}, whole(beat.step)), el("td", {}, beat.phase), el("td", {}, t("ago", duration(beat.age))), el("td.wrap", {}, beat.host)));
  return el("section.card.scroll", {}, el("h2", {}, t(late.length ? "slowest" : "none_behind", whole(s.step))), table(["rank", "step", "phase", "heartbeat", "host"], rows, [0, 1]));
}

function table(heads, rows, numeric = []) {
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, i) => el(numeric.includes(i) ? "th.num" : "th", { scope: "col" }, t(head))))), el("tbody", {}, rows));
}

function narrow(node) {
  node.classList.add("narrow");
  return node;
}

function findingCard(f) {
  const severity = f.is_error ? "error" : f.severity;
  const spread = f.count > 1 && f.first_step !== f.last_step;
  const when = spread ? t("times", whole(f.count), whole(f.first_step), whole(f.last_step)) : f.first_step ? t("at_step", whole(f.first_step)) : "";
  const rank = f.is_error && f.rank !== undefined && f.where !== `rank ${f.rank}` ? t("on_rank", f.rank) : "";
  const facts = [f.where, rank, when].filter(Boolean).join(" · ");
  const why = f.explanation[settings.language] || f.explanation.en;
  return el(`article.card.finding.is-${["error", "warning"].includes(severity) ? severity : "note"}`, {},
    el("h2", {}, `${t(severity)}: `, el("code", {}, f.code)), el("p", {}, f.what), facts ? el("p.aside", {}, facts) : "",
    f.found ? el("p", {}, el("b", {}, t("what_found") + " "), f.found) : "",
    f.hint ? el("p.hint", {}, el("b", {}, t("fix") + " "), f.hint) : "",
    why ? el("p.aside", {}, el("b", {}, t("why") + ": "), why) : "");
}

function findingsView(data) {
  const exits = data.exits.map((row) => el("tr", {}, el("td.num", {}, String(row.rank ?? "")), el("td.num", {}, String(row.code ?? "")), el("td", {}, String(row.signal ?? "")), el("td.wrap", {}, String(row.error || row.cause || ""))));
  const cards = data.findings.map(findingCard);
  return el("div", {}, cards.length ? cards : el("p.empty", {}, t("no_findings")), data.left_out ? el("p.note", {}, t("and_more", data.left_out)) : "",
    exits.length ? el("section.card.scroll", {}, el("h2", {}, t("exits")), table(["rank", "code", "signal", "cause"], exits, [0, 1])) : "");
}

function tokens(row) {
  const text = String(row.completion ?? ""), { token_ends: ends, logprobs } = row;
  const characters = Array.from(text); // code points, as the run counts them
  // Redacted or cut texts no longer fit their tokens: they are shown plain
  if (!Array.isArray(ends) || !Array.isArray(logprobs) || ends.length !== logprobs.length || ends.at(-1) !== characters.length) return [text];
  return ends.map((end, i) => {
    const p = Math.exp(Number(logprobs[i]));
    const level = p >= 0.9 ? 0 : p >= 0.6 ? 1 : p >= 0.3 ? 2 : p >= 0.1 ? 3 : 4;
    const piece = characters.slice(i ? ends[i - 1] : 0, end).join("");
    return piece ? el(`span.token.p${level}`, { title: t("token_tip", percent(p)) }, piece) : "";
  });
}

const SHOWN_ROWS = 8; // of a group, until all are asked for

function sampleGroup({ step, answers, rows, count, right }) {
  const entry = (row) => {
    const scores = Object.keys(row).filter((name) => name.startsWith("reward/"));
    const chip = (name, value) => el("span.score", {}, `${name} ${value === null || value === undefined ? t("unscored") : number(value)}`);
    const facts = answers ? [el(`span.score.${row.correct ? "good" : "bad"}`, {}, t(row.correct ? "correct" : "wrong"))]
      : [chip(t("reward"), row.reward), ...(scores.length > 1 ? scores.map((name) => chip(name.slice(7), row[name])) : []), row.tokens ? el("span.note", {}, t("n_tokens", row.tokens)) : "", row.ended === false ? el("span.warn", {}, t("cut_off")) : ""];
    const part = (name, value) => (value === undefined || value === "" || value === null ? "" : [el("dt", {}, t(name)), el("dd", {}, value)]);
    const images = (row.pictures || []).map((address) => el("img", { src: String(address), alt: t("picture") }));
    const left = row.pictures_left_out ? el("span.note", {}, t("pictures_left_out", row.pictures_left_out)) : "";
    const answer = answers ? String(row.answer ?? "") : tokens(row);
    return el("article.sample", {}, el("div.scores", {}, facts), el("dl", {}, images.length || left ? part("pictures", [...images, left]) : "", part("prompt", String(row.prompt ?? "")), part("completion", answer), part("expected", answers ? row.expected : row.answer)));
  };
  const more = el("button", { type: "button", hidden: rows.length <= SHOWN_ROWS, onclick: () => { more.replaceWith(...rows.slice(SHOWN_ROWS).map(entry)); } }, t("show_all", whole(rows.length)));
  const title = answers ? t("held_answers", whole(step), right, count) : t("samples_at", whole(step));
  return el("section.card", {}, el("h2", {}, title), rows.slice(0, SHOWN_ROWS).map(entry), more);
}

function tokenKey(groups) {
  if (!groups.some((g) => g.rows.some((row) => Array.isArray(row.token_ends)))) return "";
  const steps = ["≥ 90%", "60–90%", "30–60%", "10–30%", "< 10%"].map((text, i) => el(`span.swatch.p${i}`, {}, text));
  return el("p.key", {}, t("token_key"), steps);
}

function planView({ decisions, parts }) {
  if (!decisions.length && !Object.keys(parts).length) return el("p.empty", {}, t("no_plan"));
  const rows = decisions.map((d) => el("tr", {}, el("td.subject", {}, el("code", {}, d.subject)), el("td.wrap", { "data-label": t("choice") }, d.choice, d.granted === false ? el("span.warn", {}, ` · ${t("not_applied")}`) : ""), el("td.reason", { "data-label": t("reason") }, d.reason)));
  const states = Object.entries(parts.memory?.largest || {}).filter(([, v]) => typeof v === "number").map(([name, value]) => el("tr", {}, el("td", {}, name), el("td.num", {}, bytes(value))));
  const all = table(["decision", "choice", "reason"], rows);
  all.classList.add("stack");
  return el("div", {}, el("section.card.scroll", {}, all),
    states.length ? el("section.card", {}, el("h2", {}, t("states")), narrow(table(["part", "bytes"], states, [1]))) : "",
    el("section.card", {}, el("details", {}, el("summary", {}, t("parts")), el("pre.scroll", { tabindex: "0" }, JSON.stringify(parts, null, 1)))));
}

function configView(rows, view) {
  if (!rows.length) return el("p.empty", {}, t("no_config"));
  const body = el("tbody"), shown = el("span.note");
  const fill = () => {
    const wanted = view.filter.toLowerCase();
    const kept = rows.filter((row) => (!view.onlySet || !row.default) && `${row.key} ${row.value}`.toLowerCase().includes(wanted));
    shown.textContent = t("n_matches", whole(kept.length), whole(rows.length));
    body.replaceChildren(...kept.map((row) => el("tr", {}, el("td.subject", {}, el("code", {}, row.key)), el("td.wrap", {}, el("code", {}, row.value)), el("td.place", {}, row.layer ? t(row.layer) : "–", row.place ? el("span.note", {}, ` · ${row.place}`) : ""))));
  };
  const search = el("input", { type: "search", value: view.filter, "aria-label": t("filter"), placeholder: t("filter"), oninput: (e) => { view.filter = e.target.value; fill(); } });
  const only = el("input", { type: "checkbox", checked: view.onlySet, onchange: (e) => { view.onlySet = e.target.checked; fill(); } });
  fill();
  const heads = el("thead", {}, el("tr", {}, ["key", "value", "source"].map((head) => el("th", { scope: "col" }, t(head)))));
  return el("div", {}, el("div.tools", {}, search, el("label", {}, only, t("only_set")), shown), el("div.card.scroll", {}, el("table.stack", {}, heads, body)));
}

function checkpointsView(rows) {
  if (!rows.length) return el("p.empty", {}, t("no_checkpoints"));
  const lines = rows.map((row) => el("tr", {}, el("td.num", { "data-label": t("step") }, whole(row.step)), el("td", { "data-label": t("written") }, moment(row.time)), el("td.num", { "data-label": t("bytes") }, bytes(row.bytes)), el("td.num", { "data-label": t("took") }, number(row.seconds) + " s"),
    el("td", { "data-label": t("there") }, row.exists ? t("yes") : el("span.note", {}, t("removed"))), el("td.wrap", { "data-label": t("path") }, el("code", {}, String(row.path)))));
  const all = table(["step", "written", "bytes", "took", "there", "path"], lines, [0, 2, 3]);
  all.classList.add("stack");
  return el("div.card.scroll", {}, all);
}

function logLines(lines, search) {
  return lines.map((line) => {
    const kind = /\berror\b/i.test(line.slice(0, 60)) ? "error" : /\bwarning\b/i.test(line.slice(0, 60)) ? "warning" : "";
    const parts = [], low = line.toLowerCase(), wanted = search.toLowerCase();
    let at = 0;
    for (let i = wanted ? low.indexOf(wanted) : -1; i >= 0; i = low.indexOf(wanted, at)) {
      parts.push(line.slice(at, i), el("mark", {}, line.slice(i, i + wanted.length)));
      at = i + wanted.length;
    }
    return el(kind ? `span.${kind}` : "span", {}, ...parts, line.slice(at), "\n");
  });
}
