// What is missing of a jail's record: counted as it happens by who watches and who
// writes, and told for good by the gaps in the record itself.
import { jails, type Jail } from "../../api/jails.svelte";
import { lastGaps } from "../../api/record";
import type { Event } from "../../lib/event";

// How many are missing is not known of each gap: that is -1.
const sum = (all: (number | undefined)[]) => all.reduce<number>((a, b) => a + Math.max(0, b ?? 0), 0);

export class Missing {
  gaps = $state.raw<Event[]>([]); // the last ones
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

  // follow reads the gaps, and again when more is counted. Use it in an effect.
  follow(): (() => void) | undefined {
    const id = this.#jail()?.id;
    void this.#counted;
    if (!id) return undefined;
    const over = new AbortController();
    lastGaps(id, over.signal).then((found) => (this.gaps = found), () => {}); // the record says what is wrong with it where it is listed
    return () => over.abort();
  }
}
