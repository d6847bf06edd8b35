import type { Operations } from "./operations.js";
import type { ServerEvent } from "./sse.js";
import { Stream } from "./stream.js";
import type { Content } from "./transport.js";
import { type Output, type Result } from "./values.js";
import type * as wire from "./wire.js";
/**
 * A command that runs, or ran, in a jail: go through it for what it writes.
 *
 * It goes on whether or not anybody listens, and also without the daemon.
 */
export declare class Command implements AsyncIterable<Output> {
    #private;
    /** What was last heard of it. */
    info: wire.Exec;
    constructor(api: Operations, jail: string, info: wire.Exec, first?: {
        events: AsyncIterable<ServerEvent>;
        abort: AbortController;
    });
    get id(): string;
    /**
     * What it wrote and writes, from an offset on: without one, from the first that is
     * still kept. It goes on where it was when the connection breaks, to the end.
     */
    output(from?: number): Stream<Output>;
    [Symbol.asyncIterator](): Stream<Output>;
    /** Waits for its end. The result has the output that is still kept in the jail. */
    wait(): Promise<Result>;
    /** What is known of it now. */
    result(): Promise<Result>;
    /** Gives it something to read, and with close then nothing more. */
    write(data: Content, { close }?: {
        close?: boolean | undefined;
    }): Promise<void>;
    closeStdin(): Promise<void>;
    /** Sends a signal to its process group: INT, TERM, KILL or a number. */
    signal(signal: string): Promise<void>;
    resize(cols: number, rows: number): Promise<void>;
    /** Listens no more. The command goes on. */
    close(): void;
    [Symbol.asyncDispose](): Promise<void>;
}
