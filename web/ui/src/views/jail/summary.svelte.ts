// What was read of a part of a jail's record, for the tabs that sum it up.
import { feed } from "../../api/feed.svelte";
import type { Jail } from "../../api/jails.svelte";
import { Problem } from "../../api/problem";
import { scope } from "./scope.svelte";

const pause = 4000; // between two looks at what goes on

export class Summary<T> {
  told = $state.raw<T>();
  problem = $state.raw<Problem>();

  // follow reads it, and again as long as the jail adds to it. Use it in an
  // effect: it reads anew when the part of the time is another.
  follow(jail: Jail, ask: (from: number | undefined, to: number | undefined, signal: AbortSignal) => Promise<T>): () => void {
    const [from, to] = [scope.from, scope.at ?? scope.to];
    const over = new AbortController();
    let busy = false;
    let last = 0;
    const read = async () => {
      if (busy || document.hidden) return;
      busy = true;
      try {
        this.told = await ask(from, to, over.signal);
        this.problem = undefined;
      } catch (thrown) {
        if (!over.signal.aborted) this.problem = Problem.from(thrown);
      }
      last = Date.now();
      busy = false;
    };
    void read();
    const end = jail.state === "running" && to === undefined ? feed.on("jails", () => void (Date.now() - last > pause && read())) : () => {};
    return () => {
      end();
      over.abort();
    };
  }
}
