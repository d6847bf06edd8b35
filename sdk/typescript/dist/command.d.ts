import type { Operations } from "./operations.js";
import type { ServerEvent } from "./sse.js";
import { Stream } from "./stream.js";
import type { Content } from "./transport.js";
import { type Output, type Result } from "./values.js";
import type * as wire from "./wire.js";
/**
 * A command that runs, or ran, in a jail. Iterate over it to read its output.
 *
 * It runs independently of this client and of the daemon.
 */
export declare class Command implements AsyncIterable<Output> {
    #private;
    /** The last known state. */
    info: wire.Exec;
    constructor(api: Operations, jail: string, info: wire.Exec, first?: {
        events: AsyncIterable<ServerEvent>;
        abort: AbortController;
    });
    get id(): string;
    /**
     * Streams the output from an offset to the end; by default from the first byte that is
     * still stored. The stream resumes if the connection breaks.
     */
    output(from?: number): Stream<Output>;
    [Symbol.asyncIterator](): Stream<Output>;
    /** Waits for the end of the command. The result contains all output that is still stored in the jail. */
    wait(): Promise<Result>;
    /** Returns the current state. */
    result(): Promise<Result>;
    /** Writes to its standard input, and with close then closes it. */
    write(data: Content, { close }?: {
        close?: boolean | undefined;
    }): Promise<void>;
    closeStdin(): Promise<void>;
    /** Sends a signal to its process group: INT, TERM, KILL or a number. */
    signal(signal: string): Promise<void>;
    resize(cols: number, rows: number): Promise<void>;
    /** Stops reading output. The command continues to run. */
    close(): void;
    [Symbol.asyncDispose](): Promise<void>;
}
