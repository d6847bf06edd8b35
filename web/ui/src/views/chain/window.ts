// Windows of the chain, the newest first. Pages follow each other by the number of
// the entry that the last one ended with; of the whole chain that is known before.
import { get } from "../../api/client";
import { Windows, type Piece } from "../../ui/windows.svelte";
import type { Entry } from "./entry";
import type { ChainQuery } from "./scope.svelte";

// newest lists entries up to top, which is the last that there was.
export function newest(top: number, query: ChainQuery): Windows<Entry> {
  const whole = Object.values(query).every((value) => value === undefined);
  const begins = new Map<number, number>([[0, top + 1]]); // what the entry at an offset comes before
  let total = whole ? top : 0;
  let ended = whole;

  async function read(offset: number, limit: number, signal: AbortSignal): Promise<Piece<Entry>> {
    const after = whole ? top + 1 - offset : await begin(offset, limit, signal);
    if (after === undefined || after <= 1) return { items: [], total };
    const got = await get("/chain", { query: { ...query, newest: true, after, limit }, signal });
    const last = got.items.at(-1);
    if (!ended) {
      if (last && got.next) begins.set(offset + limit, last.seq);
      else ended = true;
      // Of what there is beyond it is only known that there is something.
      total = Math.max(total, offset + got.items.length + (got.next ? 1 : 0));
      if (ended) total = offset + got.items.length;
    }
    return { items: got.items, total };
  }

  // begin finds where a page begins, by way of those before it.
  async function begin(offset: number, limit: number, signal: AbortSignal): Promise<number | undefined> {
    let known = offset;
    while (!begins.has(known)) known -= limit;
    for (; known < offset; known += limit) {
      const got = await get("/chain", { query: { ...query, newest: true, after: begins.get(known) ?? 0, limit }, signal });
      const last = got.items.at(-1);
      if (!last || !got.next) return undefined;
      begins.set(known + limit, last.seq);
    }
    return begins.get(offset);
  }

  return new Windows<Entry>(read);
}
