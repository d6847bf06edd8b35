// Parts of the event log of a jail, loaded on demand.
import type { Event } from "../lib/event";
import type { Piece } from "../ui/windows.svelte";
import { get, text, type Schema } from "./client";

const iso = (ms: number | undefined) => (ms === undefined ? undefined : new Date(ms).toISOString());

// A Stretch is a list of the events of a jail that match a filter between two moments. The
// daemon maps moments to offsets in the list of all matching events; only the requested
// windows are loaded.
export class Stretch {
  #total = -1; // all matching events, as of the last window
  #ends: Promise<{ begin: number; end: number }> | undefined;

  constructor(
    readonly jail: string,
    readonly q: string,
    readonly from?: number,
    readonly to?: number,
  ) {}

  // read loads a window.
  read = async (offset: number, limit: number, signal: AbortSignal): Promise<Piece<Event>> => {
    const { begin, end } = await this.#bounds();
    const most = Math.max(0, Math.min(limit, end - begin - offset));
    const found = await this.#window({ offset: begin + offset, limit: Math.max(1, most) }, signal);
    // New events may lie between the bounds, and removal of old events moves both bounds.
    if (this.#total >= 0 && found.total !== this.#total) this.#ends = undefined;
    this.#total = found.total;
    return { items: (found.items as Event[]).slice(0, most), total: Math.max(0, Math.min(end, found.total) - begin) };
  };

  // find returns the index of the first event at or after a moment.
  async find(at: number, signal?: AbortSignal): Promise<number> {
    const { begin } = await this.#bounds();
    return Math.max(0, (await this.#window({ at: iso(at), limit: 1 }, signal)).offset - begin);
  }

  #bounds(): Promise<{ begin: number; end: number }> {
    const place = async (at: number) => (await this.#window({ at: iso(at), limit: 1 })).offset;
    this.#ends ??= Promise.all([this.from === undefined ? 0 : place(this.from), this.to === undefined ? Infinity : place(this.to + 1)]).then(
      ([begin, end]) => ({ begin, end }),
      (thrown) => {
        this.#ends = undefined; // the next window retries
        throw thrown;
      },
    );
    return this.#ends;
  }

  #window(query: { offset?: number; at?: string; limit: number }, signal?: AbortSignal): Promise<Schema["EventWindow"]> {
    return get("/jails/{id}/events", { path: { id: this.jail }, query: { q: this.q || undefined, ...query }, signal });
  }
}

// lastEvents returns the last events before a moment, oldest first.
export async function lastEvents(jail: string, until: number, most: number, signal: AbortSignal): Promise<Event[]> {
  const lines = await text("/jails/{id}/events", "application/x-ndjson", { path: { id: jail }, query: { q: "-type:usage", until: iso(until), tail: most }, signal });
  return lines.split("\n").filter(Boolean).map((line) => JSON.parse(line) as Event);
}

// lastGaps returns the last gaps: positions at which events are missing.
export async function lastGaps(jail: string, signal: AbortSignal): Promise<Event[]> {
  const found = await get("/jails/{id}/events", { path: { id: jail }, query: { q: "type:gap", offset: -200, limit: 200 }, signal });
  return found.items as Event[];
}

type Counts = Schema["TimelineCounts"];

// A Timeline counts events per time bucket, by kind.
export interface Timeline {
  from: number; // of the first bucket, in milliseconds
  step: number; // length of a bucket, in milliseconds
  buckets: number;
  counts: Counts;
  lanes: Schema["TimelineLane"][]; // of single processes, by process id
}

export async function timeline(jail: string, q: string, from: number | undefined, to: number | undefined, buckets: number, lanes: number, signal: AbortSignal): Promise<Timeline> {
  const found = await get("/jails/{id}/timeline", { path: { id: jail }, query: { q: q || undefined, from: iso(from), to: iso(to), buckets, lanes }, signal });
  return {
    from: Date.parse(found.from), step: found.bucket_ms, buckets: found.counts.syscall?.length ?? 0, counts: found.counts,
    lanes: found.lanes.toSorted((a, b) => a.pid - b.pid),
  };
}

// profile returns the system call statistics of a time range.
export function profile(jail: string, q: string, from: number | undefined, to: number | undefined, signal: AbortSignal): Promise<Schema["Profile"]> {
  return get("/jails/{id}/syscalls", { path: { id: jail }, query: { q: q || undefined, from: iso(from), to: iso(to), limit: 400 }, signal });
}

// connections returns the network peers of the jail in a time range.
export function connections(jail: string, from: number | undefined, to: number | undefined, signal: AbortSignal): Promise<Schema["Connections"]> {
  return get("/jails/{id}/connections", { path: { id: jail }, query: { from: iso(from), to: iso(to), limit: 1000 }, signal });
}

// past returns the state of the jail at a moment; ended includes ended processes.
export function past(jail: string, at: number, ended: boolean, signal: AbortSignal): Promise<Schema["Past"]> {
  return get("/jails/{id}/at", { path: { id: jail }, query: { ts: iso(at), all: ended || undefined, limit: 5000 }, signal });
}
