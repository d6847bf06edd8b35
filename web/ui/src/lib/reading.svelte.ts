import { Problem } from "../api/problem";

// A Reading is the last result of a request, or the problem with it.
export class Reading<T> {
  value = $state.raw<T>();
  problem = $state.raw<Problem>();
  busy = $state(false);
  #ask: () => Promise<T>;
  #attempt = 0;

  constructor(ask: () => Promise<T>) {
    this.#ask = ask;
  }

  // again repeats the request. The old value stays until it completes. If two requests run
  // at the same time, the later one wins.
  again = async (): Promise<void> => {
    const attempt = ++this.#attempt;
    this.busy = true;
    try {
      const found = await this.#ask();
      if (attempt !== this.#attempt) return;
      this.value = found;
      this.problem = undefined;
    } catch (thrown) {
      if (attempt === this.#attempt) this.problem = Problem.from(thrown);
    } finally {
      if (attempt === this.#attempt) this.busy = false;
    }
  };
}
