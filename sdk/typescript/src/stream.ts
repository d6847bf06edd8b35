import { setTimeout as sleep } from "node:timers/promises";
import { Disconnected, ofProblem, Unavailable } from "./errors.js";
import type { ServerEvent } from "./sse.js";
import type { Problem } from "./wire.js";

// How long a stream tries to come back to a daemon that has gone away, and how long it
// waits between.
const PATIENCE_MS = 30_000;
const FIRST_MS = 50;
const LAST_MS = 2_000;

/** What an event tells: an item, nothing, or that nothing more comes. */
export type Taken<T> = { item: T } | "nothing" | "ended";

export interface Source<T> {
  /** Connects, to go on from the id of the last event, of so many items that were told. */
  connect(at: { lastEventId?: string; told: number; signal: AbortSignal }): Promise<AsyncIterable<ServerEvent>>;
  take(event: ServerEvent): Taken<T>;
  /** What it cannot go on from, when its connection breaks, ends it with an error. */
  resumes?: boolean;
  /** Events of a connection that is there already, and what ends it. */
  events?: AsyncIterable<ServerEvent>;
  abort?: AbortController;
}

/**
 * What the daemon tells, one after the other, for as long as one asks.
 *
 * If the connection breaks it is made again, and the stream goes on behind the last that
 * was told; only a daemon that stays away for half a minute ends it. Leaving a for await
 * loop closes it.
 */
export class Stream<T> implements AsyncIterableIterator<T> {
  readonly #source: Source<T>;
  readonly #abort: AbortController;
  #events: AsyncIterator<ServerEvent> | undefined;
  #begun: boolean;
  #ended = false;
  #last: string | undefined;
  #told = 0;
  #wait = 0;

  constructor(source: Source<T>) {
    this.#source = source;
    this.#abort = source.abort ?? new AbortController();
    this.#events = source.events?.[Symbol.asyncIterator]();
    this.#begun = source.events !== undefined;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    try {
      while (!this.#ended) {
        const event = await this.#event();
        if (event === undefined) continue;
        if (event.name === "end") break;
        if (event.name === "error") throw ofProblem(event.data as Problem);
        const taken = this.#source.take(event);
        if (taken === "ended") break;
        if (event.id !== undefined) this.#last = event.id;
        if (taken === "nothing") continue;
        this.#told++;
        return { value: taken.item, done: false };
      }
    } catch (err) {
      const closed = this.#abort.signal.aborted;
      this.close();
      if (!closed) throw err;
    }
    this.close();
    return { value: undefined, done: true };
  }

  /** The next event, or nothing when the connection broke and may be made again. */
  async #event(): Promise<ServerEvent | undefined> {
    this.#events ??= await this.#come();
    try {
      const { value, done } = await this.#events.next();
      if (!done) {
        this.#wait = 0;
        return value;
      }
    } catch (err) {
      if (!(err instanceof Disconnected)) throw err;
    }
    this.#events = undefined;
    if (this.#source.resumes === false) throw new Disconnected("the stream broke, and what came since is not known");
    // A daemon that takes the call and says nothing is not to be asked in haste.
    await this.#pause(this.#wait);
    this.#wait = Math.min(Math.max(2 * this.#wait, FIRST_MS), LAST_MS);
    return undefined;
  }

  /** Connects: the first time at once or not at all, later with patience. */
  async #come(): Promise<AsyncIterator<ServerEvent>> {
    const until = Date.now() + PATIENCE_MS;
    for (let wait = FIRST_MS; ; wait = Math.min(2 * wait, LAST_MS)) {
      try {
        const at = { told: this.#told, signal: this.#abort.signal, ...(this.#last === undefined ? {} : { lastEventId: this.#last }) };
        const events = await this.#source.connect(at);
        this.#begun = true;
        return events[Symbol.asyncIterator]();
      } catch (err) {
        // Anything else: what it was about is gone, or we may no longer.
        if (!(err instanceof Unavailable) || !this.#begun || Date.now() > until) throw err;
      }
      await this.#pause(wait);
    }
  }

  #pause(ms: number): Promise<void> {
    return sleep(ms, undefined, { signal: this.#abort.signal });
  }

  /** Hears no more. It may be called twice. */
  close(): void {
    this.#ended = true;
    this.#abort.abort();
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    this.close();
    return { value: undefined, done: true };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
