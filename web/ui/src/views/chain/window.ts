// Windows over the audit log, newest first. A page starts after the last entry of the
// previous page. For the unfiltered log this entry is known without loading that page.
import { get } from "../../api/client";
import { Windows, type Piece } from "../../ui/windows.svelte";
import type { Entry } from "./entry";
import type { ChainQuery } from "./scope.svelte";

// newest lists the entries up to entry top, the last one.
export function newest(top: number, query: ChainQuery): Windows<Entry> {
  const whole = Object.values(query).every((value) => value === undefined);
  const begins = new Map<number, number>([[0, top + 1]]); // by offset: the page contains entries below this number
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
      // More entries exist, but their number is unknown.
      total = Math.max(total, offset + got.items.length + (got.next ? 1 : 0));
      if (ended) total = offset + got.items.length;
    }
    return { items: got.items, total };
  }

  // begin returns the start of a page. It loads the previous pages if necessary.
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
