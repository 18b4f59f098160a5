// Server-sent events from a byte stream: the data of each event, however the bytes are cut.

/** Turns pieces of text into the data of whole events. Comments and other fields are skipped. */
export class EventParser {
  #line = "";
  #data = [];
  #skipLineFeed = false;

  /** Takes the next piece and returns the data of every event that it completes. */
  push(piece) {
    const events = [];
    let start = 0;
    if (this.#skipLineFeed && piece !== "") {
      if (piece[0] === "\n") start = 1;
      this.#skipLineFeed = false;
    }
    for (let at = start; at < piece.length; at += 1) {
      const letter = piece[at];
      if (letter !== "\n" && letter !== "\r") continue;
      this.#endLine(this.#line + piece.slice(start, at), events);
      this.#line = "";
      if (letter === "\r") {
        if (at + 1 === piece.length) this.#skipLineFeed = true;
        else if (piece[at + 1] === "\n") at += 1;
      }
      start = at + 1;
    }
    this.#line += piece.slice(start);
    return events;
  }

  #endLine(line, events) {
    if (line === "") {
      if (this.#data.length > 0) events.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      const value = line.slice(5);
      this.#data.push(value.startsWith(" ") ? value.slice(1) : value);
    }
  }
}

/** The data of the events in the body of a fetch response, as they arrive. */
export async function* events(body) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
