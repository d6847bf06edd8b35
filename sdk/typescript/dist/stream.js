import { setTimeout as sleep } from "node:timers/promises";
import { Disconnected, ofProblem, Unavailable } from "./errors.js";
// Time limit for reconnecting to a daemon, and delays between attempts.
const PATIENCE_MS = 30_000;
const FIRST_MS = 50;
const LAST_MS = 2_000;
/**
 * A stream of items from the daemon.
 *
 * If the connection breaks, the stream reconnects and resumes after the last item. It ends
 * with an error if the daemon is unavailable for half a minute. Leaving a for await loop
 * closes it.
 */
export class Stream {
    #source;
    #abort;
    #events;
    #begun;
    #ended = false;
    #last;
    #told = 0;
    #wait = 0;
    constructor(source) {
        this.#source = source;
        this.#abort = source.abort ?? new AbortController();
        this.#events = source.events?.[Symbol.asyncIterator]();
        this.#begun = source.events !== undefined;
    }
    [Symbol.asyncIterator]() {
        return this;
    }
    async next() {
        try {
            while (!this.#ended) {
                const event = await this.#event();
                if (event === undefined)
                    continue;
                if (event.name === "end")
                    break;
                if (event.name === "error")
                    throw ofProblem(event.data);
                const taken = this.#source.take(event);
                if (taken === "ended")
                    break;
                if (event.id !== undefined)
                    this.#last = event.id;
                if (taken === "nothing")
                    continue;
                this.#told++;
                return { value: taken.item, done: false };
            }
        }
        catch (err) {
            const closed = this.#abort.signal.aborted;
            this.close();
            if (!closed)
                throw err;
        }
        this.close();
        return { value: undefined, done: true };
    }
    /** Returns the next event, or undefined if the connection broke and the stream may reconnect. */
    async #event() {
        this.#events ??= await this.#come();
        try {
            const { value, done } = await this.#events.next();
            if (!done) {
                this.#wait = 0;
                return value;
            }
        }
        catch (err) {
            if (!(err instanceof Disconnected))
                throw err;
        }
        this.#events = undefined;
        if (this.#source.resumes === false)
            throw new Disconnected("the stream broke, and events may have been missed");
        // Delay the next attempt if the daemon accepts connections but sends no events.
        await this.#pause(this.#wait);
        this.#wait = Math.min(Math.max(2 * this.#wait, FIRST_MS), LAST_MS);
        return undefined;
    }
    /** Connects. The first time it does not retry; later it retries for PATIENCE_MS. */
    async #come() {
        const until = Date.now() + PATIENCE_MS;
        for (let wait = FIRST_MS;; wait = Math.min(2 * wait, LAST_MS)) {
            try {
                const at = { told: this.#told, signal: this.#abort.signal, ...(this.#last === undefined ? {} : { lastEventId: this.#last }) };
                const events = await this.#source.connect(at);
                this.#begun = true;
                return events[Symbol.asyncIterator]();
            }
            catch (err) {
                // For example, the jail was deleted or the token revoked.
                if (!(err instanceof Unavailable) || !this.#begun || Date.now() > until)
                    throw err;
            }
            await this.#pause(wait);
        }
    }
    #pause(ms) {
        return sleep(ms, undefined, { signal: this.#abort.signal });
    }
    /** Closes the stream. It may be called twice. */
    close() {
        this.#ended = true;
        this.#abort.abort();
    }
    async return() {
        this.close();
        return { value: undefined, done: true };
    }
    async [Symbol.asyncDispose]() {
        this.close();
    }
}
