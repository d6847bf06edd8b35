import * as http from "node:http";
import { type ServerEvent } from "./sse.js";
/** What is sent: all of it, or piece by piece. */
export type Content = string | Uint8Array | Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
export interface Options {
    /**
     * unix:///path, http://host:port or https://host:port. Without one it is
     * $GLASSHOUSE_ADDR, or the socket in the data directory, or port 8082 of this host.
     */
    address?: string;
    /** Needed over the network; $GLASSHOUSE_TOKEN if not given. */
    token?: string;
}
type Query = Record<string, string | number | boolean | string[] | undefined>;
interface Request {
    method: string;
    path: string;
    query?: Query;
    body?: unknown;
    content?: Content;
    contentType?: string;
    accept?: string;
    idempotencyKey?: string;
    lastEventId?: string;
    signal?: AbortSignal;
}
/** A value as one element of a path. */
export declare const part: (value: string | number) => string;
/** A key with which a request is done once, however often it is sent. */
export declare const newKey: () => string;
/** An answer whose body is not read yet: read it, go through it, or close it. */
export declare class Answer implements AsyncIterable<Uint8Array> {
    private readonly message;
    constructor(message: http.IncomingMessage);
    get status(): number;
    get headers(): http.IncomingHttpHeaders;
    [Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined>;
    /** All of the body. */
    bytes(): Promise<Uint8Array>;
    text(): Promise<string>;
    /** The lines of the body. What is cut off is not a line. */
    lines(): AsyncGenerator<string, void, undefined>;
    /** Lets go of what is not read yet. It may be called twice. */
    close(): void;
    [Symbol.asyncDispose](): Promise<void>;
}
/** Makes requests to one daemon. */
export declare class Transport {
    private readonly address;
    private readonly token;
    private readonly agent;
    constructor(o?: Options);
    /** Closes what connections there are. */
    close(): void;
    /**
     * Makes a request and resolves to its answer, if that is one of success. What can be
     * made again without harm is, if its connection breaks.
     */
    open(r: Request): Promise<Answer>;
    private send;
    private exchange;
    private headers;
    protected json<T>(r: Request): Promise<T>;
    protected none(r: Request): Promise<void>;
    protected text(r: Request): Promise<string>;
    protected events(r: Request): Promise<AsyncIterable<ServerEvent>>;
    protected lines<T>(r: Request): Promise<AsyncIterable<T>>;
}
export {};
