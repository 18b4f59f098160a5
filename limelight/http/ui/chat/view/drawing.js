// When something that keeps changing is drawn again.

const REST = 3; // times as long as the last drawing took

/** Draws at most once a frame and, however long a drawing takes, at most a quarter of the time. */
export class Drawing {
  #draw;
  #pending = false;
  #restsUntil = 0;

  constructor(draw) {
    this.#draw = draw;
  }

  /** There is something new; it is drawn soon. */
  request() {
    if (this.#pending) return;
    this.#pending = true;
    const rest = this.#restsUntil - performance.now();
    if (rest > 0) setTimeout(() => this.#onNextFrame(), rest);
    else this.#onNextFrame();
  }

  #onNextFrame() {
    requestAnimationFrame(() => {
      const began = performance.now();
      this.#pending = false;
      this.#draw();
      const ended = performance.now();
      this.#restsUntil = ended + REST * (ended - began);
    });
  }
}
