"use strict";
// Texts, numbers and elements. Nothing from a run ever becomes HTML: el() makes text nodes only.
const settings = {
  language: "en", theme: "auto",
  load() {
    const kept = (name) => { try { return localStorage.getItem("paceline." + name); } catch { return null; } };
    this.language = kept("language") || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
    this.theme = kept("theme") || "auto";
    this.apply();
  },
  set(name, value) {
    this[name] = value;
    try { localStorage.setItem("paceline." + name, value); } catch { /* a browser that keeps nothing */ }
    this.apply();
  },
  apply() {
    document.documentElement.lang = this.language === "zh" ? "zh-CN" : "en";
    if (this.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme;
  },
};

function t(name, ...values) {
  const text = TEXTS[settings.language][name] ?? TEXTS.en[name] ?? name;
  return text.replace(/\{(\d)\}/g, (_, i) => values[i] ?? "");
}

// el("p.note", {title: "x"}, "text", child, …)
function el(spec, properties = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const locale = () => (settings.language === "zh" ? "zh-CN" : "en-US");
const whole = (value) => Number(value).toLocaleString(locale(), { maximumFractionDigits: 0 });

const LONGEST = 9; // characters that fit a tile

function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  const power = () => value.toExponential(2).replaceAll("-", "−").replace("e+", "e");
  if (size >= 1e12 || size < 1e-4) return power();
  if (size >= 1e9) return (value / 1e9).toPrecision(3) + "B";
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return whole(value);
  if (Number.isInteger(value)) return whole(value);
  const digits = value.toLocaleString(locale(), { maximumSignificantDigits: 4 }).replace("-", "−");
  return digits.length > LONGEST ? power() : digits;
}

const compact = (value) => (value < 1e3 ? whole(value) : value < 1e6 ? (value / 1e3).toPrecision(3) + "K" : number(value));

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (Math.abs(value) >= 1024 && i < 4) { value /= 1024; i++; }
  return `${i === 0 ? value.toFixed(0) : Number(value.toPrecision(3))} ${units[i]}`;
}

const percent = (value) => (100 * value).toLocaleString(locale(), { maximumFractionDigits: Math.abs(value) < 0.1 ? 2 : 1 }) + "%";

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const zh = settings.language === "zh";
  const unit = zh ? [" 天", " 小时", " 分", " 秒"] : [" d", " h", " min", " s"];
  if (seconds < 1) return zh ? "不到 1 秒" : "under 1 s";
  const s = Math.round(seconds);
  if (s < 60) return `${s}${unit[3]}`;
  if (s < 3600) return `${Math.floor(s / 60)}${unit[2]}` + (s < 600 && s % 60 ? ` ${s % 60}${unit[3]}` : "");
  if (s < 86400) return `${Math.floor(s / 3600)}${unit[1]} ${Math.floor((s % 3600) / 60)}${unit[2]}`;
  return `${Math.floor(s / 86400)}${unit[0]} ${Math.floor((s % 86400) / 3600)}${unit[1]}`;
}

const moment = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString(locale(), { dateStyle: "medium", timeStyle: "medium" }) : "–");

// How the values of a curve are written, by its name
function valueOf(name) {
  const plain = name.split("/").pop();
  if (name === "peaks/memory") return bytes;
  if (/accurac|exact_match|^mfu$|of_product|truncated|calibration_error|zero_spread|clip_(low|high)$/.test(name.replace(/^(steps|evals)\//, ""))) return percent;
  if (/seconds$/.test(plain) || name.startsWith("steps/time/")) return (v) => number(v) + " s";
  return number;
}

function titleOf(name) {
  const plain = name.replace(/^(steps|evals|peaks)\//, "");
  const names = CURVE_NAMES[settings.language], known = names[plain] || names[plain.replace(/^eval_/, "")];
  return known || plain.replace(/^eval_/, "").replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());
}
