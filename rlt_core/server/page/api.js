// Requests to the server that this page came from: keys, errors in words, event streams.

const KEY = "rlt-api-key";

export class Problem extends Error {
  constructor(words, status) {
    super(words);
    this.status = status;
  }
}

export function keep(key) {
  sessionStorage.setItem(KEY, key);
}

export function entered() {
  sessionStorage.removeItem("rlt-entering");
}

export async function get(path, signal) {
  const answer = await request(path, { signal, cache: "no-store" });
  return answer.json();
}

// The events of a streamed answer as objects, until [DONE]; an error event is thrown.
export async function* events(path, body, signal) {
  const answer = await request(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });
  for await (const data of dataLines(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(inWords(event.error, 503), 503);
    yield event;
  }
  throw new Problem("The answer broke off: the connection ended.", 0);
}

async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer.", 0);
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Problem(inWords(body.error ?? {}, answer.status, answer), answer.status);
}

function inWords(error, status, answer) {
  const said = (error.message ?? `status ${status}`).replace(/\.$/, "");
  const again = answer?.headers.get("Retry-After");
  const later = again ? ` Try again in ${again} s.` : "";
  if (status === 401) return "The server asks for an API key, and this one is not known.";
  if (status === 429) return `The server is full: ${said}.${later}`;
  if (status === 503) return `No model serves now: ${said}.${later}`;
  if (status === 504) return `The answer took too long: ${said}.`;
  if (status === 500) return `A fault of the server: ${said}.`;
  return `The server refuses this: ${said}.`;
}

async function* dataLines(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
