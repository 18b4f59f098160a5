// Server-sent events from a byte stream, however the bytes are cut.

/**
 * Turns pieces of text into whole events: `{ type, data, id }`, with the last id that the stream has told, or null.
 * Comments go to the function `comment`, where they stand; `retry` is skipped.
 */
export class EventParser {
  #comment;
  #id = null;
  #line = "";
  #type = "";
  #data = [];
  #skipLineFeed = false;

  constructor(comment = () => {}) {
    this.#comment = comment;
  }

  /** Takes the next piece and returns every event that it completes. */
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
      if (this.#data.length > 0) events.push({ type: this.#type || "message", data: this.#data.join("\n"), id: this.#id });
      this.#type = "";
      this.#data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      this.#data.push(valueOf(line, "data"));
    } else if (line.startsWith("event:")) {
      this.#type = valueOf(line, "event");
    } else if (line.startsWith("id:")) {
      this.#id = valueOf(line, "id");
    } else if (line.startsWith(":")) {
      this.#comment(valueOf(line, ""));
    }
  }
}

function valueOf(line, field) {
  const value = line.slice(field.length + 1);
  return value.startsWith(" ") ? value.slice(1) : value;
}

/** The events in the body of a fetch response, as they arrive; `comment` is told of comments. */
export async function* events(body, comment) {
  const parser = new EventParser(comment);
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
