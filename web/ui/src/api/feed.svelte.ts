// The event stream of the UI: the status of jails, and events of jails, approvals and runs.
import { follow, type Following } from "./follow";
import type { Schema } from "./client";
import type { Problem } from "./problem";
import type { Message } from "./sse";

// A FeedEvent is an entry of the audit log.
export interface FeedEvent {
  seq: number;
  at: string;
  kind: string; // of the entry: jail.created, approval.asked, run.moved …
  jail?: string;
  run?: string;
  session?: string;
  agent?: string;
  body?: unknown; // of the entry
  approval?: Schema["Approval"]; // for the topic approval: the current state of the request
}

type Listener = (data: unknown) => void;

class Feed {
  state = $state<Following>("connecting");
  problem = $state.raw<Problem>();
  #listeners = new Map<string, Set<Listener>>();
  #renewed = new Set<() => void>();
  #last = ""; // the id of the last received message
  #open: (() => void) | undefined; // closes the stream, if it is open
  #over = new AbortController();

  // Browsers allow six HTTP/1.1 connections per host for all tabs together. So only visible
  // pages have a stream, and a single hidden one, which shows notifications. Pages in the
  // back/forward cache have none.
  start(): void {
    this.stop();
    this.#over = new AbortController();
    const { signal } = this.#over;
    let watches = false; // this page is the hidden one with a stream
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
    navigator.locks?.request("glasshouse.feed", { signal }, watch).catch(() => {}); // stop aborts the request
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

  // on subscribes to a topic. It returns a function that unsubscribes: use it in an effect.
  on<T>(topic: string, listen: (data: T) => void): () => void {
    const all = this.#listeners.get(topic) ?? new Set<Listener>();
    this.#listeners.set(topic, all);
    all.add(listen as Listener);
    return () => all.delete(listen as Listener);
  }

  // renewed registers a function that reloads data. It runs when events may be missing: when
  // the first stream begins, and when the daemon does not know the last received message.
  renewed(run: () => void): () => void {
    this.#renewed.add(run);
    return () => this.#renewed.delete(run);
  }

  #take(message: Message): void {
    const first = this.#last === "";
    this.#last = message.id || this.#last;
    if (message.event === "hello" && (first || (JSON.parse(message.data) as { reset?: boolean }).reset)) for (const run of this.#renewed) run();
    const heard = this.#listeners.get(message.event);
    if (!heard?.size) return;
    const data: unknown = JSON.parse(message.data);
    for (const listen of heard) listen(data);
  }
}

export const feed = new Feed();
