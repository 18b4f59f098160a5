// One line of Markdown, read from its start by column: a tab reaches to the next multiple of four (CommonMark 0.31, 2.2).

export class Line {
  #text;
  #at = 0;
  #column = 0;
  #indent = 0;
  #next = 0;

  constructor(text) {
    this.#text = text;
    this.#measure();
  }

  /** What has not been read. */
  get rest() {
    return this.#text.slice(this.#at);
  }

  /** The same without the white space before it. */
  get content() {
    return this.#text.slice(this.#next);
  }

  /** Columns of white space before the content. */
  get indent() {
    return this.#indent;
  }

  get isBlank() {
    return this.#next === this.#text.length;
  }

  /** Goes over the white space and `count` characters after it. */
  advance(count) {
    this.#column += this.#indent + count;
    this.#at = this.#next + count;
    this.#measure();
  }

  /** Goes over at most `columns` of white space. What is left of a tab becomes spaces. */
  skip(columns) {
    let left = Math.min(columns, this.#indent);
    while (left > 0) {
      const width = this.#text[this.#at] === "\t" ? 4 - (this.#column % 4) : 1;
      if (width > left) {
        this.#text = " ".repeat(width) + this.#text.slice(this.#at + 1);
        this.#at = 0;
      } else {
        this.#at += 1;
        this.#column += width;
        left -= width;
      }
    }
    this.#measure();
  }

  #measure() {
    let column = this.#column;
    let next = this.#at;
    for (; next < this.#text.length; next += 1) {
      if (this.#text[next] === "\t") column += 4 - (column % 4);
      else if (this.#text[next] === " ") column += 1;
      else break;
    }
    this.#indent = column - this.#column;
    this.#next = next;
  }
}
