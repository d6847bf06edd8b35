// The latest audit log entries of one kind, followed live.
import { get, type Schema } from "../../api/client";
import type { FeedEvent } from "../../api/feed.svelte";
import { follow, type Following } from "../../api/follow";
import { Problem } from "../../api/problem";

export type Entry<B> = Omit<Schema["ChainEntry"], "body"> & { body: B };

const page = 100;
const calm = 200; // milliseconds between updates; there can be thousands of entries per second

export class Entries<B> {
  list = $state.raw<Entry<B>[]>([]); // newest first
  known = $state(false);
  problem = $state.raw<Problem>();
  state = $state<Following>("connecting");
  older = $state(""); // the cursor for older entries, "" if there are none
  #jail = "";
  #keep = page; // the number of entries to keep, including older ones that were requested
  #fresh: FeedEvent[] = [];
  #timer = 0;

  constructor(
    readonly kind: string, // of the audit log entries
    readonly topic: string, // the topic of the feed that has them
  ) {}

  // open loads the entries of one jail, or of all, and follows new ones. The returned function
  // stops it.
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
      // The feed continues after the loaded entries, so that none is lost in between.
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

  // more loads older entries.
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

  #hear(event: FeedEvent): void {
    if (this.#jail && event.jail !== this.#jail) return;
    this.#fresh.push(event);
    if (this.#fresh.length > this.#keep) this.#fresh.shift();
    this.#timer ||= window.setTimeout(() => this.#show(), calm);
  }

  #show(): void {
    this.#timer = 0;
    const last = this.list[0]?.seq ?? 0;
    const fresh = this.#fresh.filter((event) => event.seq > last).reverse().map((event) => this.#entry(event));
    this.#fresh = [];
    const all = [...fresh, ...this.list];
    this.list = all.slice(0, this.#keep);
    if (all.length > this.#keep) this.older = String(this.list.at(-1)?.seq ?? "");
  }

  #entry(event: FeedEvent): Entry<B> {
    return {
      seq: event.seq, time: event.at, kind: event.kind, jail: event.jail ?? "", session: event.session ?? "", run: event.run ?? "", agent: event.agent ?? "",
      capability: "", parent: 0, prev: "", hash: "", body: event.body as B,
    };
  }
}
