import * as http from "node:http";
import { type ServerEvent } from "./sse.js";
/** The body of a request, complete or in pieces. */
export type Content = string | Uint8Array | Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
export interface Options {
    /**
     * unix:///path, http://host:port or https://host:port. The default is $GLASSHOUSE_ADDR, the
     * socket in the data directory, or port 8082 of this host.
     */
    address?: string;
    /** Required over the network; default $GLASSHOUSE_TOKEN. */
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
/** Encodes a value as a path element. */
export declare const part: (value: string | number) => string;
/** Returns an idempotency key: the daemon executes requests with the same key once. */
export declare const newKey: () => string;
/** A response whose body has not been read. Read it, iterate over it, or close it. */
export declare class Answer implements AsyncIterable<Uint8Array> {
    private readonly message;
    constructor(message: http.IncomingMessage);
    get status(): number;
    get headers(): http.IncomingHttpHeaders;
    [Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined>;
    /** Reads the whole body. */
    bytes(): Promise<Uint8Array>;
    text(): Promise<string>;
    /** Iterates over the lines of the body. An incomplete last line is dropped. */
    lines(): AsyncGenerator<string, void, undefined>;
    /** Discards the unread rest of the body. It may be called twice. */
    close(): void;
    [Symbol.asyncDispose](): Promise<void>;
}
/** Makes requests to one daemon. */
export declare class Transport {
    private readonly address;
    private readonly token;
    private readonly agent;
    constructor(o?: Options);
    /** Closes idle connections. */
    close(): void;
    /**
     * Makes a request and resolves to the response if its status is a success. If the connection
     * breaks, it retries requests that are safe to repeat.
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
