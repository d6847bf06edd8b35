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
  approval?: Schema["Approval"]; // of the topic approval: the request as it is now
}

type Listener = (data: unknown) => void;

class Feed {
  state = $state<Following>("connecting");
  problem = $state.raw<Problem>();
  #listeners = new Map<string, Set<Listener>>();
  #renewed = new Set<() => void>();
  #end = () => {};

  start(): void {
    this.#end();
    this.#end = follow("/feed", {
      onMessage: (message) => this.#take(message),
      onState: (state, problem) => {
        this.state = state;
        this.problem = problem;
      },
    });
  }

  stop(): void {
    this.#end();
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
    if (message.event === "hello" && (JSON.parse(message.data) as { reset?: boolean }).reset) for (const run of this.#renewed) run();
    const heard = this.#listeners.get(message.event);
    if (!heard?.size) return;
    const data: unknown = JSON.parse(message.data);
    for (const listen of heard) listen(data);
  }
}

export const feed = new Feed();
