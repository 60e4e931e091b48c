// The stream of events. It is read by fetch and not by EventSource, which cannot send a token.

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
// A browser has six connections to a service, over HTTP/1.1, and a stream takes one of them.
const HIDDEN_FOR_MS = 15_000;
// A stream counts as broken after this silence: an event comes every second.
const SILENT_FOR_MS = 10_000;
const KEY = `sojourn-token ${new URL(".", document.baseURI).pathname}`;

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  drop: () => sessionStorage.removeItem(KEY),
};

export function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  return fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
}

// Calls `onEvent(content)` for each event, `onLost(reason)` after a while without a stream (with the
// service's message or null), and `onDenied(message)`, which resolves once there is another token.
export class Stream {
  constructor({ onEvent, onLost, onDenied }) {
    Object.assign(this, { onEvent, onLost, onDenied });
    this.abort = null;
    this.hiddenTimer = 0;
    this.wake = null;
    document.addEventListener("visibilitychange", () => this.visibilityChanged());
  }

  visibilityChanged() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) {
      // The page is hidden: the service need not compute events.
      this.hiddenTimer = setTimeout(() => this.abort?.abort(), HIDDEN_FOR_MS);
    } else {
      this.wake?.();
    }
  }

  again() {
    this.abort?.abort();
    this.wake?.();
  }

  async run() {
    let pauseMs = FIRST_PAUSE_MS;
    // A tab opened in the background waits until it is visible.
    while (document.hidden) await this.pause(Infinity);
    for (;;) {
      const beganMs = performance.now();
      this.refusal = null;
      try {
        const denied = await this.read();
        if (denied) {
          await this.onDenied(denied);
          pauseMs = FIRST_PAUSE_MS;
          continue;
        }
      } catch {
        // The network failed, or the page ended the stream: retry below.
      }
      // A long stream was cut by an upgrade or a time limit: reconnect at once.
      pauseMs = performance.now() - beganMs > 5000 ? FIRST_PAUSE_MS : Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
      if (pauseMs > 2 * FIRST_PAUSE_MS || document.hidden || this.refusal) this.onLost(this.refusal);
      await this.pause(pauseMs * (0.75 + Math.random() / 2));
      while (document.hidden) await this.pause(Infinity);
    }
  }

  pause(ms) {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (Number.isFinite(ms)) setTimeout(resolve, ms);
    });
  }

  async read() {
    this.abort = new AbortController();
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => this.abort.abort(), SILENT_FOR_MS);
    };
    heard();
    try {
      const answer = await request("events", { signal: this.abort.signal });
      if (answer.status === 401 || answer.status === 403) return (await answer.json()).error;
      if (!answer.ok) {
        this.refusal = (await answer.json()).error;
        return null;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return null;
        heard();
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        for (const part of parts) this.emit(part);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  emit(part) {
    this.onEvent(JSON.parse(part.slice("data: ".length)));
  }
}
