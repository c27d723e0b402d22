// What the engine does now: asked once a second, and only while somebody can see it.

import { get } from "./api.js";
import { paint } from "./tokens.js";

const EVERY_MS = 1000;

export class EngineView {
  #told;
  #failed;
  #before = null;
  #timer = 0;
  #asking = false;

  // told(engine) and failed(problem) hear of each answer.
  constructor(told, failed) {
    this.#told = told;
    this.#failed = failed;
    document.addEventListener("visibilitychange", () => this.ask());
  }

  async ask() {
    clearTimeout(this.#timer);
    if (document.hidden || this.#asking) return;
    this.#asking = true;
    try {
      const engine = await get("v1/engine");
      this.#show(engine);
      this.#told(engine);
    } catch (problem) {
      this.#before = null;
      ready("down", problem.status ? "refused" : "no answer");
      this.#failed(problem);
    } finally {
      this.#asking = false;
    }
    this.#timer = setTimeout(() => this.ask(), EVERY_MS);
  }

  #show(engine) {
    const { state, facts } = engine;
    ready(engine.ready ? "up" : "down", engine.ready ? "ready" : engine.reason);
    write("model", facts ? summary(engine) : engine.model);
    write("slots", `${state.slots_used} of ${state.num_slots}`);
    write("waiting", state.num_waiting);
    const cached = state.pages_cached ? `, ${count(state.pages_cached)} cached` : "";
    write("pages", `${count(state.pages_used)} of ${count(state.pages_total)}${cached}`);
    const now = { at: performance.now(), ticks: state.ticks, loops: state.row_loops };
    // Counters that fell are a new stage's.
    const before = this.#before && this.#before.ticks <= now.ticks ? this.#before : now;
    const seconds = (now.at - before.at) / 1000;
    const pace = (more) => (seconds > 0 ? Math.round(more / seconds) : 0);
    write("ticks", count(pace(now.ticks - before.ticks)));
    bars(now.loops, now.loops.map((loops, i) => pace(loops - (before.loops[i] ?? 0))));
    this.#before = now;
  }
}

function summary({ model, facts }) {
  const depth = facts.max_depth > facts.loops ? `, up to ${facts.max_depth}` : "";
  return `${model} · ${facts.family}, ${facts.loops} loops${depth} · exit ${facts.exit_policy} · ${facts.device}, ${facts.dtype}`;
}

function ready(state, words) {
  document.getElementById("ready").dataset.state = state;
  write("ready-text", words);
}

// A bar a depth: loops since the stage began, and how many more come in a second.
function bars(totals, paces) {
  const list = document.getElementById("row-loops");
  while (list.children.length > totals.length) list.lastChild.remove();
  const most = Math.max(1, ...totals);
  totals.forEach((total, i) => {
    const item = list.children[i] ?? list.appendChild(bar(i + 1));
    paint(item, i + 1, totals.length);
    item.style.setProperty("--share", total / most);
    item.lastChild.textContent = count(total) + (paces[i] ? ` (+${count(paces[i])}/s)` : "");
  });
}

function bar(depth) {
  const item = document.createElement("li");
  const [name, track, words] = ["span", "span", "span"].map((tag) => document.createElement(tag));
  name.textContent = depth;
  name.className = "depth";
  track.className = "track";
  track.append(document.createElement("span"));
  item.append(name, track, words);
  return item;
}

function count(number) {
  return number.toLocaleString("en");
}

function write(id, text) {
  const element = document.getElementById(id);
  if (element.textContent !== String(text)) element.textContent = text;
}
