import { Problem } from "../api/problem";

// A Toast is a short message in a corner. It disappears automatically; a problem stays
// until the user closes it.
export interface Toast {
  id: number;
  text: string;
  problem?: Problem;
}

const shown = 5_000;
const most = 5;

class Toasts {
  list = $state.raw<Toast[]>([]);
  #next = 1;

  say(text: string): void {
    const id = this.#add({ text });
    setTimeout(() => this.close(id), shown);
  }

  fail(what: string, thrown: unknown): void {
    this.#add({ text: what, problem: Problem.from(thrown) });
  }

  close(id: number): void {
    this.list = this.list.filter((t) => t.id !== id);
  }

  #add(toast: Omit<Toast, "id">): number {
    const id = this.#next++;
    this.list = [...this.list, { ...toast, id }].slice(-most);
    return id;
  }
}

export const toasts = new Toasts();

// attempt runs an action and shows a toast with its result. It reports success.
export async function attempt(what: string, run: () => Promise<unknown>, done = ""): Promise<boolean> {
  try {
    await run();
    if (done) toasts.say(done);
    return true;
  } catch (thrown) {
    toasts.fail(`${what} failed`, thrown);
    return false;
  }
}
