import { Changes } from "./changes";
import { all, get, type Schema } from "./client";
import { feed, type FeedEvent } from "./feed.svelte";
import { Problem } from "./problem";

export type Jail = Schema["Jail"];

// A Row is the status of a jail in the feed. The feed sends it when it changed, each second
// at most.
export interface Row {
  id: string;
  state: Jail["state"];
  cpu: number; // CPUs in use
  memory_bytes: number;
  pids: number;
  rx_bytes_s: number;
  tx_bytes_s: number;
  events_s: number;
  gaps: number;
}

// Live is the current resource usage of a jail.
export interface Live {
  row?: Row;
  net: number[]; // bytes per second in the last minute, for a sparkline
}

const minute = 60;
const nothing: Live = { net: [] };

// The list of jails. It is loaded once and then updated by the feed. Resource usage arrives
// each second; the last minute of it is kept.
class Jails {
  list = $state.raw<Jail[]>([]);
  known = $state(false);
  problem = $state.raw<Problem>();
  #live = $state.raw(new Map<string, Live>());
  #changes = new Changes<[id: string, kind: string]>();

  // start subscribes to resource usage. The feed sends the complete status only once, so this
  // must run for all pages, before a view needs it.
  start(): () => void {
    return feed.on<{ all?: boolean; jails: Row[] }>("jails", ({ all, jails }) => this.#beat(jails, all ?? false));
  }

  // follow keeps the list up to date until the returned function is called.
  follow(): () => void {
    const ends = [
      feed.on<FeedEvent>("jail", ({ jail, kind }) => jail && this.#changed(jail, kind)),
      feed.renewed(() => void this.read()),
    ];
    void this.read();
    return () => ends.forEach((end) => end());
  }

  async read(): Promise<void> {
    try {
      await this.#changes.during(all((after) => get("/jails", { query: { limit: 1000, after } })), (list, changes) => {
        this.list = list;
        new Map(changes).forEach((kind, id) => void this.#reload(id, kind));
      });
      this.known = true;
      this.problem = undefined;
    } catch (thrown) {
      this.problem = Problem.from(thrown);
    }
  }

  put(jail: Jail, deleted = false): void {
    const at = this.list.findIndex((j) => j.id === jail.id);
    if (deleted) this.list = this.list.filter((j) => j.id !== jail.id);
    else if (at < 0) this.list = [...this.list, jail];
    else this.list = this.list.with(at, jail);
  }

  live(id: string): Live {
    return this.#live.get(id) ?? nothing;
  }

  #changed(id: string, kind: string): void {
    this.#changes.add([id, kind]);
    void this.#reload(id, kind);
  }

  // reload reads a jail after an event.
  async #reload(id: string, kind: string): Promise<void> {
    if (kind === "jail.deleted") {
      this.list = this.list.filter((j) => j.id !== id);
      return;
    }
    try {
      this.put(await get("/jails/{id}", { path: { id } }));
    } catch {
      // The jail was deleted meanwhile; its event follows.
    }
  }

  #beat(rows: Row[], all: boolean): void {
    const known = all ? new Map<string, Live>() : new Map(this.#live);
    for (const row of rows) known.set(row.id, { row, net: this.#live.get(row.id)?.net ?? [] });
    // A jail that is not in the message did not change: repeat its last value.
    for (const [id, { row, net }] of known) {
      known.set(id, { ...(row ? { row } : {}), net: [...net, (row?.rx_bytes_s ?? 0) + (row?.tx_bytes_s ?? 0)].slice(-minute) });
    }
    this.#live = known;
  }
}

export const jails = new Jails();
