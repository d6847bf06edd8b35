import { all, get, type Schema } from "./client";
import { feed } from "./feed.svelte";
import { Problem } from "./problem";

export type Jail = Schema["Jail"];

// What the feed tells of a jail each second.
export interface Beat {
  id: string;
  cpu?: number; // of one processor: 1.5 is one and a half
  memory_bytes?: number;
  net_bytes?: number; // each second, both ways
  events?: number; // each second
  gaps?: number;
}

// A jail as a row shows it.
export interface Live {
  beat?: Beat;
  net: number[]; // the last minute, for a sparkline
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

  // follow keeps the list as it is now. What it returns ends it.
  follow(): () => void {
    const ends = [
      feed.on<{ jails: Beat[] }>("jails", ({ jails }) => this.#beat(jails)),
      feed.on<{ jail: Jail; gone?: boolean }>("jail", ({ jail, gone }) => this.put(jail, gone)),
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

  #beat(beats: Beat[]): void {
    // Made anew each time, so that jails that are gone leave nothing behind.
    const next = new Map<string, Live>();
    for (const beat of beats) {
      const net = [...(this.#live.get(beat.id)?.net ?? []), beat.net_bytes ?? 0].slice(-minute);
      next.set(beat.id, { beat, net });
    }
    this.#live = next;
  }
}

export const jails = new Jails();
