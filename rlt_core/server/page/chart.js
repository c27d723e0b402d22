// Depth over the answer: a bar for each token, and a line at the mean.

import { meanDepth } from "./answer.js";
import { paint } from "./tokens.js";

const SVG = "http://www.w3.org/2000/svg";
export const LEAST = 24; // so that a short answer's bars are no broad blocks

export class Chart {
  #plot;
  #scale = 1;
  #tokens = [];
  #waiting = false;

  // `tell(i, rectangle)` is called with the token under the pointer.
  constructor(plot, tell, leave) {
    this.#plot = plot;
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const i = Math.floor(((event.clientX - box.left) / box.width) * this.#width);
      if (i < this.#tokens.length) tell(i, new DOMRect(event.clientX, box.top, 1, box.height));
      else leave();
    });
    plot.addEventListener("pointerleave", leave);
  }

  begin(depth) {
    this.#scale = depth;
    this.#tokens = [];
    this.#draw();
  }

  // Draws once a frame, however many tokens come.
  show(tokens) {
    this.#tokens = tokens;
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#draw();
    });
  }

  get #width() {
    return Math.max(LEAST, this.#tokens.length);
  }

  #draw() {
    const tokens = this.#tokens;
    this.#plot.setAttribute("viewBox", `0 0 ${this.#width} ${this.#scale}`);
    const lines = Array.from({ length: this.#scale }, (_, i) => this.#line(i, "grid"));
    this.#plot.replaceChildren(...lines, ...this.#bars(tokens));
    if (!tokens.length) return this.#plot.setAttribute("aria-label", "No tokens yet");
    const mean = meanDepth(tokens);
    this.#plot.append(this.#line(this.#scale - mean, "mean"));
    const said = `Depth of ${tokens.length} tokens, ${mean.toFixed(2)} of ${this.#scale} on average`;
    this.#plot.setAttribute("aria-label", said);
  }

  // One path for all bars of a depth: an answer may have thousands.
  #bars(tokens) {
    const paths = new Map();
    tokens.forEach(({ depth }, i) => {
      const bar = `M${i + 0.06} ${this.#scale}v${-depth}h.88v${depth}z`;
      paths.set(depth, (paths.get(depth) ?? "") + bar);
    });
    return [...paths].map(([depth, d]) => {
      const path = made("path", { d, class: "bars", "data-depth": depth });
      paint(path, depth, this.#scale);
      return path;
    });
  }

  #line(y, kind) {
    return made("line", { x1: 0, x2: this.#width, y1: y, y2: y, class: kind });
  }
}

function made(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
