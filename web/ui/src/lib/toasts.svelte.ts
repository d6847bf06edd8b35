import { Problem } from "../api/problem";

// What has just happened, said in a corner and taken back by itself. A problem
// stays until somebody has seen it.
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

// attempt does something and says how it went. It reports whether it went well.
export async function attempt(what: string, run: () => Promise<unknown>, done = ""): Promise<boolean> {
  try {
    await run();
    if (done) toasts.say(done);
    return true;
  } catch (thrown) {
    toasts.fail(`${what} did not work`, thrown);
    return false;
  }
}
