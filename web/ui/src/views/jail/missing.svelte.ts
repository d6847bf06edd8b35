// The number of missing events of a jail: counted live by its sources and its log, and
// stored in the gap events of the log.
import { jails, type Jail } from "../../api/jails.svelte";
import { lastGaps } from "../../api/record";
import type { Event } from "../../lib/event";

// The number is unknown for some gaps: -1.
const sum = (all: (number | undefined)[]) => all.reduce<number>((a, b) => a + Math.max(0, b ?? 0), 0);

export class Missing {
  gaps = $state.raw<Event[]>([]); // the latest gaps
  #jail: () => Jail | undefined;

  constructor(jail: () => Jail | undefined) {
    this.#jail = jail;
  }

  #counted = $derived.by(() => {
    const jail = this.#jail();
    const seen = jail?.observation;
    const now = sum([...Object.values(seen?.log?.lost ?? {}), ...Object.values(seen?.sources ?? {}).map((s) => s.lost)]);
    return Math.max(now, (jail && jails.live(jail.id).row?.gaps) ?? 0);
  });
  records = $derived(Math.max(this.#counted, sum(this.gaps.map((g) => g.lost)), this.gaps.length));

  // follow loads the gaps, and reloads them when the count rises. Use it in an effect.
  follow(): (() => void) | undefined {
    const id = this.#jail()?.id;
    void this.#counted;
    if (!id) return undefined;
    const over = new AbortController();
    lastGaps(id, over.signal).then((found) => (this.gaps = found), () => {}); // the tab Events shows problems with the log
    return () => over.abort();
  }
}
