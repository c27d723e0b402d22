// What a request asks for: the prompt, sliders and numbers, with the bounds of the engine.

const WORDS = { exit_threshold: "Exit threshold" };

export class Controls {
  #facts = null;
  #params = new Map(); // name -> { slider, number, spec }

  constructor() {
    this.#bind("min-loops", () => this.#push("max-loops", Math.max));
    this.#bind("max-loops", () => this.#push("min-loops", Math.min));
    at("reset").addEventListener("click", () => this.#reset());
  }

  // The engine's bounds; asked for again after a restart, when they may be others.
  bound(facts) {
    if (JSON.stringify(facts) === JSON.stringify(this.#facts)) return;
    this.#facts = facts;
    at("kinds").hidden = !facts.has_chat;
    at("first-hint").hidden = facts.exit_mode !== "skip";
    at("max-tokens").max = facts.max_tokens;
    at("max-tokens").value = Math.min(at("max-tokens").value, facts.max_tokens);
    for (const id of ["min-loops", "max-loops"]) at(id).max = this.#deepest;
    at("params").replaceChildren(...facts.exit_params.map((spec) => this.#slider(spec)));
    this.#reset();
  }

  get isChat() {
    return !at("kinds").hidden && new FormData(at("ask")).get("kind") === "chat";
  }

  // The most loops that a token of the next request can take.
  get depth() {
    return this.#facts ? Math.max(this.#facts.loops, value("max-loops")) : 1;
  }

  // Only what was moved is sent: the rest is the checkpoint's own.
  body() {
    const prompt = at("prompt").value;
    const body = {
      stream: true,
      return_exit_depths: true,
      return_token_ids: true,
      max_tokens: value("max-tokens"),
      ...(this.isChat
        ? { messages: [{ role: "user", content: prompt }], logprobs: true }
        : { prompt, logprobs: 0 }),
    };
    for (const id of ["temperature", "seed"]) if (at(id).value !== "") body[id] = value(id);
    if (at("ignore-eos").checked) body.ignore_eos = true;
    return { ...body, ...this.#loops(), ...this.#moved() };
  }

  get #deepest() {
    return this.#facts.loops_override ? this.#facts.max_depth : this.#facts.loops;
  }

  #loops() {
    const [min, max, own] = [value("min-loops"), value("max-loops"), this.#facts.loops];
    return {
      ...(min > 1 ? { min_loops: min } : {}),
      ...(max < own ? { max_loops: max } : {}),
      ...(max > own ? { loops: max } : {}), // deeper than the model's own depth
    };
  }

  #moved() {
    const found = {};
    for (const [name, { number, spec }] of this.#params) {
      if (Number(number.value) === spec.default || number.value === "") continue;
      if (name === "exit_threshold") found[name] = Number(number.value);
      else (found.exit_params ??= {})[name] = Number(number.value);
    }
    return found;
  }

  #reset() {
    for (const id of ["temperature", "seed"]) at(id).value = "";
    at("ignore-eos").checked = false;
    set("min-loops", 1);
    set("max-loops", this.#facts?.loops ?? 1);
    for (const { slider, number, spec } of this.#params.values()) {
      slider.value = number.value = spec.default ?? spec.minimum ?? 0;
    }
  }

  // The two loop sliders cannot cross: one pushes the other.
  #push(other, pick) {
    set(other, pick(value("min-loops"), value("max-loops")));
  }

  #bind(id, moved) {
    at(id).addEventListener("input", () => {
      moved();
      set(id, value(id));
    });
  }

  // A slider, and beside it a box for the exact number, also beyond the slider's end.
  #slider(spec) {
    const row = element("div", { className: "slider" });
    const label = element("label", { textContent: WORDS[spec.name] ?? spec.name, htmlFor: spec.name });
    const least = spec.minimum ?? 0;
    const most = spec.maximum ?? Math.max(1, 4 * (spec.default ?? 0));
    const step = spec.whole ? 1 : "any";
    const number = element("input", { type: "number", min: least, step, required: true });
    if (spec.maximum !== null) number.max = spec.maximum;
    number.setAttribute("aria-label", `${label.textContent}, exact`);
    const slider = element("input", { type: "range", id: spec.name, min: least, max: most });
    slider.step = spec.whole ? 1 : (most - least) / 100;
    number.id = `${spec.name}-value`;
    slider.addEventListener("input", () => (number.value = Number(slider.value)));
    number.addEventListener("input", () => (slider.value = number.value));
    const hint = element("p", { className: "hint", textContent: spec.summary, id: `${spec.name}-hint` });
    slider.setAttribute("aria-describedby", hint.id);
    row.append(label, number, slider, hint);
    this.#params.set(spec.name, { slider, number, spec });
    return row;
  }
}

function at(id) {
  return document.getElementById(id);
}

function value(id) {
  return Number(at(id).value);
}

function set(id, number) {
  at(id).value = number;
  at(`${id}-value`).value = number;
}

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}
