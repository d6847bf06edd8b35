import { GlasshouseError } from "./errors.js";
import type * as wire from "./wire.js";
/** A line for /bin/sh, or a program and its arguments. */
export type CommandLine = string | readonly string[];
export interface RunOptions {
    env?: Record<string, string>;
    cwd?: string;
    user?: string;
    stdin?: string | Uint8Array;
    /** Milliseconds after which the command is killed. */
    timeout?: number;
    /** Run it on a terminal of this size. */
    pty?: wire.Size;
    /** Maximum bytes of output that are stored in the jail for later readers. */
    keepBytes?: number;
}
/** A piece of a command's output. */
export interface Output {
    stream: "stdout" | "stderr";
    data: Uint8Array;
    /** Counts the bytes of both streams together. */
    offset: number;
    /** Bytes before it that are no longer stored. */
    lost: number;
}
/** The exit code and the output of a command. */
export declare class Result {
    /** 128 plus the number of the signal that terminated it; -1 while it runs. */
    readonly exitCode: number;
    readonly stdoutBytes: Uint8Array;
    readonly stderrBytes: Uint8Array;
    readonly info: wire.Exec;
    constructor(
    /** 128 plus the number of the signal that terminated it; -1 while it runs. */
    exitCode: number, stdoutBytes: Uint8Array, stderrBytes: Uint8Array, info: wire.Exec);
    get stdout(): string;
    get stderr(): string;
    get ok(): boolean;
    get timedOut(): boolean;
    /** Whether output was dropped because of the storage limit. */
    get truncated(): boolean;
    /** Throws CommandFailed unless the exit code is 0. */
    check(): this;
}
export declare function resultOf(x: wire.Exec): Result;
export declare function outputOf(o: wire.Output): Output;
export declare function execRequest(command: CommandLine, o: RunOptions): wire.ExecRequest;
/** A command ended with an exit code other than 0. */
export declare class CommandFailed extends GlasshouseError {
    readonly result: Result;
    constructor(detail: string, result: Result);
}
