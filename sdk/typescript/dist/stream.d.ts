import type { ServerEvent } from "./sse.js";
/** What an event tells: an item, nothing, or that nothing more comes. */
export type Taken<T> = {
    item: T;
} | "nothing" | "ended";
export interface Source<T> {
    /** Connects, to go on from the id of the last event, of so many items that were told. */
    connect(at: {
        lastEventId?: string;
        told: number;
        signal: AbortSignal;
    }): Promise<AsyncIterable<ServerEvent>>;
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
export declare class Stream<T> implements AsyncIterableIterator<T> {
    #private;
    constructor(source: Source<T>);
    [Symbol.asyncIterator](): this;
    next(): Promise<IteratorResult<T, undefined>>;
    /** Hears no more. It may be called twice. */
    close(): void;
    return(): Promise<IteratorResult<T, undefined>>;
    [Symbol.asyncDispose](): Promise<void>;
}
