"use strict";
// Where the page's data come from: the server, or the report's own data.
const embedded = document.getElementById("report-data");
const source = embedded ? staticSource(JSON.parse(embedded.textContent)) : liveSource();

function liveSource() {
  const get = async (path) => {
    const answer = await fetch(path, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    return answer.json();
  };
  const of = (run, path, query) => get(`/api/runs/${encodeURIComponent(run)}${path}` + (query ? "?" + new URLSearchParams(query) : ""));
  return {
    live: true,
    runs: () => get("/api/runs"),
    summary: (run) => of(run, ""),
    series: (run, names, { x, from, to, buckets }) => {
      const query = new URLSearchParams(names.map((name) => ["name", name]));
      query.set("x", x);
      query.set("buckets", String(buckets));
      if (from !== null && from !== undefined) { query.set("from", String(from)); query.set("to", String(to)); }
      return get(`/api/runs/${encodeURIComponent(run)}/series?${query}`);
    },
    part: (run, name, query) => of(run, "/" + name, query),
  };
}

function staticSource(data) {
  const inside = (curve, from, to) => {
    if (from === null || from === undefined) return curve;
    const keep = curve.x.map((x, i) => [x, i]).filter(([x]) => x >= from && x <= to).map(([, i]) => i);
    const part = (list) => keep.map((i) => list[i]);
    return { x: part(curve.x), mean: part(curve.mean), low: curve.low.length ? part(curve.low) : [], high: curve.high.length ? part(curve.high) : [], lost: curve.lost.filter((x) => x >= from && x <= to), count: keep.length };
  };
  const logs = (query) => {
    const wanted = (query.search || "").toLowerCase();
    return { lines: data.log.filter((line) => line.toLowerCase().includes(wanted)), before: 0 };
  };
  return {
    live: false, written: data.written,
    runs: async () => ({ runs: [data.summary], root: data.summary.path }),
    summary: async () => data.summary,
    series: async (run, names, { x, from, to }) => Object.fromEntries(names.filter((n) => data.series[x][n]).map((n) => [n, inside(data.series[x][n], from, to)])),
    part: async (run, name, query) => (name === "log" ? logs(query) : data[name]),
  };
}
