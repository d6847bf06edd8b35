import { all, get, type Schema } from "./client";
import { feed, type FeedEvent } from "./feed.svelte";
import { Problem } from "./problem";

export type Jail = Schema["Jail"];

// What the feed tells of a jail each second in which something of it changed.
export interface Row {
  id: string;
  state: Jail["state"];
  cpu: number; // processors it keeps busy
  memory_bytes: number;
  pids: number;
  rx_bytes_s: number;
  tx_bytes_s: number;
  events_s: number;
  gaps: number;
}

// A jail as it is shown in a list.
export interface Live {
  row?: Row;
  net: number[]; // bytes a second, of the last minute, for a sparkline
}

const minute = 60;
const nothing: Live = { net: [] };

// The jails there are. Who they are is read once and then told by the feed; what
// they use comes each second, and only the last minute is kept.
class Jails {
  list = $state.raw<Jail[]>([]);
  known = $state(false);
  problem = $state.raw<Problem>();
  #live = $state.raw(new Map<string, Live>());

  // start hears what jails use. The feed tells all of it once, at its beginning,
  // and then what changes: whoever looks later must not have missed that.
  start(): () => void {
    return feed.on<{ all?: boolean; jails: Row[] }>("jails", ({ all, jails }) => this.#beat(jails, all ?? false));
  }

  // follow keeps the list as it is now. What it returns ends it.
  follow(): () => void {
    const ends = [
      feed.on<FeedEvent>("jail", ({ jail, kind }) => jail && void this.#changed(jail, kind)),
      feed.renewed(() => void this.read()),
    ];
    void this.read();
    return () => ends.forEach((end) => end());
  }

  async read(): Promise<void> {
    try {
      this.list = await all((after) => get("/jails", { query: { limit: 1000, after } }));
      this.known = true;
      this.problem = undefined;
    } catch (thrown) {
      this.problem = Problem.from(thrown);
    }
  }

  put(jail: Jail, gone = false): void {
    const at = this.list.findIndex((j) => j.id === jail.id);
    if (gone) this.list = this.list.filter((j) => j.id !== jail.id);
    else if (at < 0) this.list = [...this.list, jail];
    else this.list = this.list.with(at, jail);
  }

  live(id: string): Live {
    return this.#live.get(id) ?? nothing;
  }

  // changed looks at a jail anew that something happened to.
  async #changed(id: string, kind: string): Promise<void> {
    if (kind === "jail.deleted") {
      this.list = this.list.filter((j) => j.id !== id);
      return;
    }
    try {
      this.put(await get("/jails/{id}", { path: { id } }));
    } catch {
      // It is gone by now; that comes next.
    }
  }

  #beat(rows: Row[], all: boolean): void {
    const known = all ? new Map<string, Live>() : new Map(this.#live);
    for (const row of rows) known.set(row.id, { row, net: this.#live.get(row.id)?.net ?? [] });
    // A jail that is not told of did not change: what it was it still is.
    for (const [id, { row, net }] of known) {
      known.set(id, { ...(row ? { row } : {}), net: [...net, (row?.rx_bytes_s ?? 0) + (row?.tx_bytes_s ?? 0)].slice(-minute) });
    }
    this.#live = known;
  }
}

export const jails = new Jails();
