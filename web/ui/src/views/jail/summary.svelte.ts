// A Summary is data about a part of the event log, for the tabs with totals.
import { feed } from "../../api/feed.svelte";
import type { Jail } from "../../api/jails.svelte";
import { Problem } from "../../api/problem";
import { scope } from "./scope.svelte";

const pause = 4000; // milliseconds between updates

export class Summary<T> {
  found = $state.raw<T>();
  problem = $state.raw<Problem>();

  // follow loads the data, and reloads it while the jail adds events. Use it in an effect,
  // which restarts it for another time range.
  follow(jail: Jail, ask: (from: number | undefined, to: number | undefined, signal: AbortSignal) => Promise<T>): () => void {
    const [from, to] = [scope.from, scope.at ?? scope.to];
    const over = new AbortController();
    let busy = false;
    let last = 0;
    const read = async () => {
      if (busy || document.hidden) return;
      busy = true;
      try {
        this.found = await ask(from, to, over.signal);
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
