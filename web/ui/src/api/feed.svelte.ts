// The one stream that the whole page follows: what there is of jails, and what
// happens to them, to approvals and to runs.
import { follow, type Following } from "./follow";
import type { Schema } from "./client";
import type { Problem } from "./problem";
import type { Message } from "./sse";

// What happened, as the causal chain has it.
export interface FeedEvent {
  seq: number;
  at: string;
  kind: string; // of the entry: jail.created, approval.asked, run.moved …
  jail?: string;
  run?: string;
  session?: string;
  agent?: string;
  body?: unknown; // of the entry
  approval?: Schema["Approval"]; // of the topic approval: the request as it is now
}

type Listener = (data: unknown) => void;

class Feed {
  state = $state<Following>("connecting");
  problem = $state.raw<Problem>();
  #listeners = new Map<string, Set<Listener>>();
  #renewed = new Set<() => void>();
  #last = ""; // the message that was seen last
  #open: (() => void) | undefined; // ends the stream, if there is one
  #over = new AbortController();

  // A browser has six connections to a host, for all of its tabs together. So the
  // stream is for pages that somebody sees, and for one that nobody does: that one
  // says what waits. A page that is only kept, to be gone back to, has none.
  start(): void {
    this.stop();
    this.#over = new AbortController();
    const { signal } = this.#over;
    let watches = false; // for all that nobody sees
    const look = () => this.#want(watches || !document.hidden);
    document.addEventListener("visibilitychange", look, { signal });
    window.addEventListener("pageshow", look, { signal });
    window.addEventListener("pagehide", () => this.#want(false), { signal });
    look();
    const watch = () => {
      watches = true;
      look();
      return new Promise((resolve) => signal.addEventListener("abort", resolve));
    };
    navigator.locks?.request("glasshouse.feed", { signal }, watch).catch(() => {}); // the page was left
  }

  stop(): void {
    this.#over.abort();
    this.#want(false);
  }

  #want(wanted: boolean): void {
    if (wanted === (this.#open !== undefined)) return;
    this.#open?.();
    this.#open = !wanted ? undefined : follow("/feed", {
      last: this.#last,
      onMessage: (message) => this.#take(message),
      onState: (state, problem) => {
        this.state = state;
        this.problem = problem;
      },
    });
  }

  // on hears what comes of one topic. Use it in an effect: what it returns ends it.
  on<T>(topic: string, listen: (data: T) => void): () => void {
    const all = this.#listeners.get(topic) ?? new Set<Listener>();
    this.#listeners.set(topic, all);
    all.add(listen as Listener);
    return () => all.delete(listen as Listener);
  }

  // renewed runs when the daemon cannot tell what was missed, since it does not
  // know the last message that was seen: then all has to be read anew.
  renewed(run: () => void): () => void {
    this.#renewed.add(run);
    return () => this.#renewed.delete(run);
  }

  #take(message: Message): void {
    this.#last = message.id || this.#last;
    if (message.event === "hello" && (JSON.parse(message.data) as { reset?: boolean }).reset) for (const run of this.#renewed) run();
    const heard = this.#listeners.get(message.event);
    if (!heard?.size) return;
    const data: unknown = JSON.parse(message.data);
    for (const listen of heard) listen(data);
  }
}

export const feed = new Feed();
