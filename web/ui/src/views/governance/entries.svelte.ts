// Entries of the causal chain of one kind: the last ones, and from then on each as
// it is made.
import { get, type Schema } from "../../api/client";
import type { FeedEvent } from "../../api/feed.svelte";
import { follow, type Following } from "../../api/follow";
import { Problem } from "../../api/problem";

export type Entry<B> = Omit<Schema["ChainEntry"], "body"> & { body: B };

const page = 100;
const calm = 200; // milliseconds: there can be thousands a second, and nobody reads as fast

export class Entries<B> {
  list = $state.raw<Entry<B>[]>([]); // the newest first
  known = $state(false);
  problem = $state.raw<Problem>();
  state = $state<Following>("connecting");
  older = $state(""); // where what is older begins; "": there is none
  #jail = "";
  #keep = page; // how many are kept: as many as somebody has asked for
  #fresh: FeedEvent[] = [];
  #timer = 0;

  constructor(
    readonly kind: string, // of the entries
    readonly topic: string, // of the feed, that they are
  ) {}

  // open reads those of one jail, or of all, and follows. What it returns ends it.
  open(jail: string): () => void {
    this.#jail = jail;
    this.list = [];
    this.known = false;
    this.older = "";
    this.#keep = page;
    this.#fresh = [];
    let end = () => {};
    let over = false;
    void this.#read().then((head) => {
      if (over || head === undefined) return;
      // The feed goes on behind what was read, so none is missed in between.
      end = follow(`/feed?topics=${this.topic}`, {
        last: String(head),
        onMessage: (message) => {
          if (message.event === this.topic) this.#hear(JSON.parse(message.data) as FeedEvent);
          else if (message.event === "hello" && (JSON.parse(message.data) as { reset?: boolean }).reset) void this.#read();
        },
        onState: (state) => (this.state = state),
      });
    });
    return () => {
      over = true;
      clearTimeout(this.#timer);
      this.#timer = 0;
      end();
    };
  }

  // more reads what is older.
  async more(): Promise<void> {
    try {
      const found = await this.#page(Number(this.older));
      this.list = [...this.list, ...found.items];
      this.older = found.next;
      this.#keep = this.list.length;
    } catch (thrown) {
      this.problem = Problem.from(thrown);
    }
  }

  async #read(): Promise<number | undefined> {
    try {
      const { entries } = await get("/chain/head");
      const found = await this.#page();
      this.list = found.items;
      this.older = found.next;
      this.known = true;
      this.problem = undefined;
      return Math.max(entries, this.list[0]?.seq ?? 0);
    } catch (thrown) {
      this.problem = Problem.from(thrown);
      return undefined;
    }
  }

  async #page(after?: number): Promise<{ items: Entry<B>[]; next: string }> {
    const found = await get("/chain", { query: { kind: this.kind, newest: true, limit: page, jail: this.#jail || undefined, after } });
    return { items: found.items as Entry<B>[], next: found.next ?? "" };
  }

  #hear(told: FeedEvent): void {
    if (this.#jail && told.jail !== this.#jail) return;
    this.#fresh.push(told);
    if (this.#fresh.length > this.#keep) this.#fresh.shift();
    this.#timer ||= window.setTimeout(() => this.#show(), calm);
  }

  #show(): void {
    this.#timer = 0;
    const last = this.list[0]?.seq ?? 0;
    const fresh = this.#fresh.filter((told) => told.seq > last).reverse().map((told) => this.#entry(told));
    this.#fresh = [];
    const all = [...fresh, ...this.list];
    this.list = all.slice(0, this.#keep);
    if (all.length > this.#keep) this.older = String(this.list.at(-1)?.seq ?? "");
  }

  #entry(told: FeedEvent): Entry<B> {
    return {
      seq: told.seq, time: told.at, kind: told.kind, jail: told.jail ?? "", session: told.session ?? "", run: told.run ?? "", agent: told.agent ?? "",
      capability: "", parent: 0, prev: "", hash: "", body: told.body as B,
    };
  }
}
