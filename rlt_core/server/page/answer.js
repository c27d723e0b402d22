// An answer as a list of tokens: { text, name, depth, logprob, id }. `text` is the token's part of
// the answer, empty for part of a character or an end mark, and `name` stands for it then.

export class CompletionAnswer {
  tokens = [];
  reason = null;
  #characters = []; // offsets of the API count code points, not UTF-16 units
  #starts = [];

  // The place of the first token that this chunk changed or added.
  take(chunk) {
    const choice = chunk.choices[0];
    if (!choice) return this.tokens.length;
    const first = Math.max(0, this.tokens.length - 1); // its text may have been held back
    for (const character of choice.text) this.#characters.push(character);
    const found = choice.logprobs;
    (found?.tokens ?? []).forEach((name, i) => {
      this.#starts.push(found.text_offset[i]);
      this.tokens.push(token(name, choice, i, found.token_logprobs[i]));
    });
    for (let i = first; i < this.tokens.length; i++) this.tokens[i].text = this.#slice(i);
    this.reason = choice.finish_reason ?? this.reason;
    return first;
  }

  #slice(i) {
    return this.#characters.slice(this.#starts[i], this.#starts[i + 1]).join("");
  }
}

export class ChatAnswer {
  tokens = [];
  reason = null;
  #decoder = new TextDecoder();

  take(chunk) {
    const choice = chunk.choices[0];
    const first = this.tokens.length;
    if (!choice) return first;
    // Not delta.content: it has neither reasoning nor tool calls, and no borders between tokens.
    (choice.logprobs?.content ?? []).forEach((entry, i) => {
      const made = token(entry.token, choice, i, entry.logprob);
      made.text = entry.bytes
        ? this.#decoder.decode(new Uint8Array(entry.bytes), { stream: true })
        : entry.token;
      this.tokens.push(made);
    });
    this.reason = choice.finish_reason ?? this.reason;
    return first;
  }
}

export function meanDepth(tokens) {
  return tokens.reduce((sum, token) => sum + token.depth, 0) / tokens.length;
}

function token(name, choice, i, logprob) {
  return { text: "", name, depth: choice.exit_depths[i], id: choice.token_ids[i], logprob };
}
