import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { type Answer, type Content } from "./transport.js";
import type * as wire from "./wire.js";
export interface WriteOptions {
    /** Permission bits, octal. */
    mode?: string;
    append?: boolean;
    /** Make the directories that it is in. */
    parents?: boolean;
    uid?: number;
    gid?: number;
}
/** The files of one jail, by paths that begin at its root. */
export declare class Files {
    private readonly api;
    private readonly jail;
    constructor(api: Operations, jail: string);
    /** What is in a file, or in a part of it. */
    read(path: string, { offset, size }?: {
        offset?: number;
        size?: number;
    }): Promise<Uint8Array>;
    readText(path: string): Promise<string>;
    /** A file to be gone through piece by piece, whatever its size. */
    open(path: string): Promise<Answer>;
    /** Writes a file: a string, bytes, or pieces of it one after the other. */
    write(path: string, data: Content, o?: WriteOptions): Promise<wire.File>;
    /** What is in a directory, by name. */
    list(path?: string): AsyncGenerator<wire.File, void, undefined>;
    stat(path: string): Promise<wire.File>;
    mkdir(path: string, { mode, parents }?: {
        mode?: string;
        parents?: boolean;
    }): Promise<wire.File>;
    move(from: string, to: string): Promise<void>;
    remove(path: string, { recursive }?: {
        recursive?: boolean;
    }): Promise<void>;
    /** A directory as a tar archive, to be read or gone through. */
    getTar(path: string): Promise<Answer>;
    /** Unpacks a tar archive into a directory. */
    putTar(path: string, archive: Content): Promise<void>;
    /**
     * What changes under a path from now on. A connection that breaks is an error: what
     * happened meanwhile nobody knows.
     */
    watch(path: string, { recursive }?: {
        recursive?: boolean;
    }): Stream<wire.FileEvent>;
}
