// The tokens on the page: coloured, and told about under the pointer or by the keyboard.

export class TokenView {
  #box;
  #tip;
  #tokens = [];
  #scale = 1;

  constructor(box, tip) {
    this.#box = box;
    this.#tip = tip;
    box.addEventListener("pointerover", (event) => this.#point(event.target));
    box.addEventListener("pointerleave", () => this.hide());
    box.addEventListener("focusin", (event) => this.#point(event.target));
    box.addEventListener("focusout", () => this.hide());
    box.addEventListener("keydown", (event) => this.#key(event));
    // Going to a token by key may scroll it into view, here or in the box: the tooltip goes along.
    addEventListener("scroll", () => this.#follow(), { passive: true, capture: true });
  }

  // A new answer; its tokens leave after at most `depth` loops.
  begin(depth) {
    this.#tokens = [];
    this.#scale = depth;
    this.#box.replaceChildren();
    this.hide();
  }

  // Tokens from `first` on are new or have another text.
  show(tokens, first) {
    this.#tokens = tokens;
    for (let i = first; i < tokens.length; i++) {
      const span = this.#box.children[i] ?? this.#add(i);
      write(span, tokens[i]);
      span.dataset.depth = tokens[i].depth;
      paint(span, tokens[i].depth, this.#scale);
    }
  }

  // The tooltip of token i, next to `place` (the token's own place by default).
  tell(i, place) {
    const token = this.#tokens[i];
    if (!token) return;
    this.#mark(i);
    this.#tip.replaceChildren(...facts(token, i, this.#scale));
    this.#tip.hidden = false;
    this.#lay(place ?? this.#box.children[i].getClientRects()[0]);
  }

  hide() {
    this.#tip.hidden = true;
    this.#box.querySelector("[aria-describedby]")?.removeAttribute("aria-describedby");
    this.#box.querySelector(".told")?.classList.remove("told");
  }

  #add(i) {
    const span = document.createElement("span");
    span.className = "token";
    span.dataset.index = i;
    span.tabIndex = i === 0 ? 0 : -1; // one stop of the Tab key, whatever the answer's length
    this.#box.append(span);
    return span;
  }

  #mark(i) {
    this.hide();
    const span = this.#box.children[i];
    span.setAttribute("aria-describedby", this.#tip.id);
    span.classList.add("told");
  }

  #follow() {
    const told = this.#box.querySelector(".told");
    if (told) this.#lay(told.getClientRects()[0]);
  }

  #point(target) {
    const span = target.closest?.(".token");
    if (span) this.tell(Number(span.dataset.index));
  }

  #key(event) {
    const at = Number(event.target.dataset?.index);
    const last = this.#tokens.length - 1;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
    if (event.key === "Escape") this.hide();
    if (!(event.key in to) || Number.isNaN(at)) return;
    event.preventDefault();
    const next = Math.min(Math.max(to[event.key], 0), last);
    event.target.tabIndex = -1;
    this.#box.children[next].tabIndex = 0;
    this.#box.children[next].focus();
  }

  #lay(place) {
    const { offsetWidth: width, offsetHeight: height } = this.#tip;
    const room = document.documentElement.clientWidth - width - 8;
    const above = place.top - height - 8;
    this.#tip.style.left = `${Math.max(8, Math.min(place.left, room))}px`;
    this.#tip.style.top = `${above > 8 ? above : place.bottom + 8}px`;
  }
}

// Sets where an element lies on the colour ramp of page.css: 0 the shallowest, 1 the deepest.
export function paint(element, depth, scale) {
  element.style.setProperty("--at", scale > 1 ? (depth - 1) / (scale - 1) : 0);
}

function write(span, token) {
  // textContent: whatever a model writes, none of it becomes markup.
  span.textContent = token.text || (isPart(token.name) ? "▫" : token.name);
  span.classList.toggle("mark", !token.text);
  span.classList.toggle("newline", token.text.includes("\n"));
}

function facts(token, i, scale) {
  const rows = [
    ["token", `${i + 1}, ${JSON.stringify(token.text || token.name)}`],
    ["depth", `${token.depth} of ${scale}`],
    ["probability", percent(token.logprob)],
    ["token id", String(token.id)],
  ];
  return rows.map(([name, value]) => {
    const row = document.createElement("p");
    const label = document.createElement("span");
    const text = document.createElement("b");
    label.textContent = name;
    text.textContent = value;
    row.append(label, " ", text);
    return row;
  });
}

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return `${share >= 0.01 ? share.toFixed(2) : share.toExponential(1)} %`;
}

function isPart(name) {
  return name.startsWith("bytes:");
}
