import { Problem } from "../api/problem";

// A Reading is what was last read of something, or why it could not be.
export class Reading<T> {
  value = $state.raw<T>();
  problem = $state.raw<Problem>();
  busy = $state(false);
  #ask: () => Promise<T>;
  #turn = 0;

  constructor(ask: () => Promise<T>) {
    this.#ask = ask;
  }

  // again reads it anew. What was read stays until then; of two at one time the
  // later counts.
  again = async (): Promise<void> => {
    const turn = ++this.#turn;
    this.busy = true;
    try {
      const found = await this.#ask();
      if (turn !== this.#turn) return;
      this.value = found;
      this.problem = undefined;
    } catch (thrown) {
      if (turn === this.#turn) this.problem = Problem.from(thrown);
    } finally {
      if (turn === this.#turn) this.busy = false;
    }
  };
}
