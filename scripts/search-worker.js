// The site's search, which runs in a worker of the theme. scripts/site_pages.py copies this file; mkdocs.yml loads it.
// The worker gets the pages in the reader's language alone, guides before lists, no words like "the" and no plurals: the
// theme looks for the beginning of each word, so "an" would find "another", and "GPUs" no "GPU".
// Browsers start no worker from a folder (file:): a hidden frame runs it there.

const STOP = /^(an?|and|are|can|did|do(es)?|for|from|how|i|in|is|it|my|of|on|or|the|to|use|was|what|when|why|with)$/i;
const LISTS = /(^|\/)(reference|explanation|benchmarks|changelog|contributing|how-to\/add)\b/;

const prepared = (message) => {
  if (message.type === 2) {  // a query
    const words = message.data.replace(/['’]s\b/g, "").split(/\s+/);
    const kept = words.filter((word) => !STOP.test(word));
    const singular = (kept.length ? kept : words).map((word) => word
      .replace(/(ss|x|ch|sh)es$/i, "$1").replace(/([a-z]{2})ies$/i, "$1y").replace(/([a-z]{2}[^s])s$/i, "$1"));
    return {...message, data: singular.join(" ")};
  }
  if (message.type === 0) {  // the index, once a page
    const {config, docs} = message.data, chinese = document.documentElement.lang === "zh";
    if (!chinese) Object.assign(config, {lang: ["en"], pipeline: ["stopWordFilter", "trimmer"]});
    message.data.docs = docs.filter((page) => page.location.startsWith("zh/") === chinese);
    for (const page of message.data.docs) if (LISTS.test(page.location)) page.boost = 0.2;
  }
  return message;
};

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inside = frame.contentWindow;
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
    this.inside.importScripts = async (...urls) => { for (const each of urls) await this.load(each); };
    this.loaded = this.load(url);
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.inside.document.createElement("script");
      Object.assign(script, {src: url, onload: resolve, onerror: reject});
      this.inside.document.body.append(script);
    });
  }

  postMessage(data) {
    this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
  }
}

const inFolder = location.protocol === "file:";
window.Worker = class extends (inFolder ? FrameWorker : Worker) {
  postMessage(message) { super.postMessage(prepared(message)); }
};
if (inFolder) window.IFrameWorker = window.Worker;  // by this name the theme's worker sees where its files are
