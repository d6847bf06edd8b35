import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { type Answer, type Content } from "./transport.js";
import type * as wire from "./wire.js";
export interface WriteOptions {
    /** Permission bits, octal. */
    mode?: string;
    append?: boolean;
    /** Create missing parent directories. */
    parents?: boolean;
    uid?: number;
    gid?: number;
}
/** The files of a jail. Paths are relative to its root directory. */
export declare class Files {
    private readonly api;
    private readonly jail;
    constructor(api: Operations, jail: string);
    /** Returns the content of a file, or of a part of it. */
    read(path: string, { offset, size }?: {
        offset?: number;
        size?: number;
    }): Promise<Uint8Array>;
    readText(path: string): Promise<string>;
    /** Opens a file of any size to read it piece by piece. */
    open(path: string): Promise<Answer>;
    /** Writes a file from a string, bytes, or an iterable of pieces. */
    write(path: string, data: Content, o?: WriteOptions): Promise<wire.File>;
    /** Lists a directory, sorted by name. */
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
    /** Returns a directory as a tar archive, to read at once or piece by piece. */
    getTar(path: string): Promise<Answer>;
    /** Extracts a tar archive into a directory. */
    putTar(path: string, archive: Content): Promise<void>;
    /**
     * Streams later changes below a path. If the connection breaks, it throws an error:
     * changes may have been missed.
     */
    watch(path: string, { recursive }?: {
        recursive?: boolean;
    }): Stream<wire.FileEvent>;
}
