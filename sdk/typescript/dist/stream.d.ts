import type { ServerEvent } from "./sse.js";
/** The result of an event: an item, no item, or the end of the stream. */
export type Taken<T> = {
    item: T;
} | "nothing" | "ended";
export interface Source<T> {
    /** Connects, with the id of the last event and the number of items so far. */
    connect(at: {
        lastEventId?: string;
        told: number;
        signal: AbortSignal;
    }): Promise<AsyncIterable<ServerEvent>>;
    take(event: ServerEvent): Taken<T>;
    /** False if the source cannot resume: a broken connection then ends the stream with an error. */
    resumes?: boolean;
    /** The events of an open connection, and the controller that ends it. */
    events?: AsyncIterable<ServerEvent>;
    abort?: AbortController;
}
/**
 * A stream of items from the daemon.
 *
 * If the connection breaks, the stream reconnects and resumes after the last item. It ends
 * with an error if the daemon is unavailable for half a minute. Leaving a for await loop
 * closes it.
 */
export declare class Stream<T> implements AsyncIterableIterator<T> {
    #private;
    constructor(source: Source<T>);
    [Symbol.asyncIterator](): this;
    next(): Promise<IteratorResult<T, undefined>>;
    /** Closes the stream. It may be called twice. */
    close(): void;
    return(): Promise<IteratorResult<T, undefined>>;
    [Symbol.asyncDispose](): Promise<void>;
}
