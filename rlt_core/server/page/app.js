// The page: sends what the controls say, shows what comes, and what the engine does meanwhile.

import { ChatAnswer, CompletionAnswer, meanDepth } from "./answer.js";
import { entered, events, keep } from "./api.js";
import { Chart, LEAST } from "./chart.js";
import { Controls } from "./controls.js";
import { EngineView } from "./engine.js";
import { TokenView, paint } from "./tokens.js";

const at = (id) => document.getElementById(id);
const controls = new Controls();
const view = new TokenView(at("answer"), at("tip"));
const chart = new Chart(at("plot"), (i, place) => view.tell(i, place), () => view.hide());
const engine = new EngineView(engineTold, engineFailed);
let isReady = false;
let running = null; // the AbortController of the answer that streams

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (isReady && !running) generate();
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
});
at("stop").addEventListener("click", () => running?.abort());
at("numbers").addEventListener("change", (event) => {
  at("answer").classList.toggle("numbered", event.target.checked);
});
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(at("key").value);
  at("key").value = "";
  at("key-form").hidden = true;
  complain("");
  engine.ask();
});
entered();
begin(1);
engine.ask();

function engineTold({ ready, facts }) {
  isReady = ready;
  if (at("problem").dataset.from === "engine") complain("");
  if (facts) {
    controls.bound(facts);
    if (!at("answer").hasChildNodes()) begin(controls.depth);
  }
  enable();
}

function engineFailed(problem) {
  isReady = false;
  enable();
  failed(problem, "engine");
}

async function generate() {
  running = new AbortController();
  const isChat = controls.isChat;
  const answer = isChat ? new ChatAnswer() : new CompletionAnswer();
  const times = { sent: performance.now(), first: 0, last: 0, numFirst: 0 };
  const depth = begin(controls.depth);
  complain("");
  enable();
  say("Waiting for the first token");
  at("answer").scrollIntoView({ block: "nearest" }); // below the form on a phone
  try {
    const path = isChat ? "v1/chat/completions" : "v1/completions";
    for await (const chunk of events(path, controls.body(), running.signal)) {
      take(answer, chunk, times, depth);
    }
    say(ended(answer));
  } catch (error) {
    if (error.name === "AbortError") say(`Stopped after ${tokensOf(answer)}`);
    else {
      say(answer.tokens.length ? `Broken off after ${tokensOf(answer)}` : "");
      failed(error, "answer");
    }
  } finally {
    running = null;
    enable();
  }
}

function take(answer, chunk, times, depth) {
  const first = answer.take(chunk);
  if (!answer.tokens.length) return;
  times.last = performance.now();
  if (!times.first) {
    times.first = times.last;
    times.numFirst = answer.tokens.length;
    say("Streaming");
  }
  view.show(answer.tokens, first);
  chart.show(answer.tokens);
  legend(answer.tokens, depth);
  figures(answer.tokens, times);
}

// Empties what an answer fills; the depth that its colours reach.
function begin(depth) {
  view.begin(depth);
  chart.begin(depth);
  legend([], depth);
  at("top-depth").textContent = depth;
  at("last-token").textContent = "";
  for (const id of ["num-tokens", "mean-depth", "pace", "first-token"]) at(id).textContent = "–";
  say("");
  return depth;
}

function legend(tokens, depth) {
  const counts = new Array(depth).fill(0);
  for (const token of tokens) counts[token.depth - 1] += 1;
  const list = at("legend");
  while (list.children.length > depth) list.lastChild.remove();
  counts.forEach((count, i) => {
    const item = list.children[i] ?? list.appendChild(document.createElement("li"));
    item.dataset.depth = i + 1;
    item.textContent = i || depth === 1 ? `${i + 1}` : "1 loop";
    if (count) item.textContent += `: ${count}`;
    paint(item, i + 1, depth);
  });
}

// Tokens a second: of those that came after the first; of all, where they came at once.
function pace(tokens, times) {
  const later = tokens.length - times.numFirst;
  if (later && times.last > times.first) return (later * 1000) / (times.last - times.first);
  return (tokens.length * 1000) / (times.last - times.sent);
}

function figures(tokens, times) {
  at("num-tokens").textContent = tokens.length;
  at("mean-depth").textContent = meanDepth(tokens).toFixed(2);
  at("pace").textContent = pace(tokens, times).toFixed(1);
  at("first-token").textContent = `${Math.round(times.first - times.sent)} ms`;
  at("last-token").textContent = `token ${Math.max(LEAST, tokens.length)}`;
}

function enable() {
  at("send").disabled = !isReady || running !== null;
  at("stop").disabled = running === null;
}

function failed(problem, from) {
  if (problem.status === undefined) console.error(problem); // a fault of this page
  complain(problem.message, from);
  if (problem.status === 401) at("key-form").hidden = false;
}

function complain(words, from = "") {
  if (from === "engine" && at("problem").dataset.from === "answer") return; // said already
  at("problem").dataset.from = words ? from : "";
  at("problem").hidden = !words;
  if (at("problem").textContent !== words) at("problem").textContent = words;
}

function say(words) {
  at("told").textContent = words;
}

function ended(answer) {
  const why = { length: "the limit", stop: "the model's end", tool_calls: "a tool call" }[answer.reason];
  return `Ended after ${tokensOf(answer)}${why ? `: ${why}` : ""}`;
}

function tokensOf({ tokens }) {
  return tokens.length === 1 ? "1 token" : `${tokens.length} tokens`;
}
