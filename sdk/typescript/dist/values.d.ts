import type * as wire from "./wire.js";
/** A line for /bin/sh, or a program and its arguments. */
export type CommandLine = string | readonly string[];
export interface RunOptions {
    env?: Record<string, string>;
    cwd?: string;
    user?: string;
    stdin?: string | Uint8Array;
    /** Milliseconds, after which all of it is killed. */
    timeout?: number;
    /** Run it on a terminal of this size. */
    pty?: wire.Size;
    /** How much of its output is kept in the jail for readers that come later. */
    keepBytes?: number;
}
/** A piece of what a command wrote. */
export interface Output {
    stream: "stdout" | "stderr";
    data: Uint8Array;
    /** Counts the bytes of both streams together. */
    offset: number;
    /** Bytes just before it that were no longer kept. */
    lost: number;
}
/** How a command ended, and what it wrote. */
export declare class Result {
    /** 128 plus the signal's number, if one ended it; -1 while it runs. */
    readonly exitCode: number;
    readonly stdoutBytes: Uint8Array;
    readonly stderrBytes: Uint8Array;
    readonly info: wire.Exec;
    constructor(
    /** 128 plus the signal's number, if one ended it; -1 while it runs. */
    exitCode: number, stdoutBytes: Uint8Array, stderrBytes: Uint8Array, info: wire.Exec);
    get stdout(): string;
    get stderr(): string;
    get ok(): boolean;
    get timedOut(): boolean;
    /** Whether there was more output than is kept. */
    get truncated(): boolean;
    /** Throws CommandFailed unless it ended with 0. */
    check(): this;
}
export declare function resultOf(x: wire.Exec): Result;
export declare function outputOf(o: wire.Output): Output;
export declare function execRequest(command: CommandLine, o: RunOptions): wire.ExecRequest;
