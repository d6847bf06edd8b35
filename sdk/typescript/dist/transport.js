import { randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { find } from "./address.js";
import { Disconnected, GlasshouseError, Invalid, ofProblem, Unavailable } from "./errors.js";
import { eventsOf } from "./sse.js";
// Maximum attempts of a request that can be retried, and the delay before a retry.
const TRIES = 3;
const TRY_MS = 200;
const CONNECT_MS = 10_000;
const LONGEST_LINE = 4 << 20;
/** Encodes a value as a path element. */
export const part = (value) => encodeURIComponent(value);
/** Returns an idempotency key: the daemon executes requests with the same key once. */
export const newKey = () => randomBytes(16).toString("hex");
/** A response whose body has not been read. Read it, iterate over it, or close it. */
export class Answer {
    message;
    constructor(message) {
        this.message = message;
        message.on("error", () => { }); // readers get the error from the iterator; without a listener it would end the process
    }
    get status() {
        return this.message.statusCode ?? 0;
    }
    get headers() {
        return this.message.headers;
    }
    async *[Symbol.asyncIterator]() {
        try {
            for await (const piece of this.message)
                yield piece;
        }
        catch (cause) {
            throw broken(cause);
        }
    }
    /** Reads the whole body. */
    async bytes() {
        const pieces = [];
        for await (const piece of this)
            pieces.push(piece);
        return Buffer.concat(pieces);
    }
    async text() {
        return Buffer.from(await this.bytes()).toString("utf8");
    }
    /** Iterates over the lines of the body. An incomplete last line is dropped. */
    async *lines() {
        let rest = [];
        let size = 0;
        for await (const piece of this) {
            let from = 0;
            for (let end; (end = piece.indexOf(10, from)) >= 0; from = end + 1) {
                rest.push(Buffer.from(piece.subarray(from, end)));
                const line = Buffer.concat(rest).toString("utf8");
                [rest, size] = [[], 0];
                yield line.endsWith("\r") ? line.slice(0, -1) : line;
            }
            rest.push(Buffer.from(piece.subarray(from)));
            size += piece.length - from;
            if (size > LONGEST_LINE)
                throw new GlasshouseError("a line of the response is too long");
        }
    }
    /** Discards the unread rest of the body. It may be called twice. */
    close() {
        this.message.destroy();
    }
    async [Symbol.asyncDispose]() {
        this.close();
    }
}
/** Makes requests to one daemon. */
export class Transport {
    address;
    token;
    agent;
    constructor(o = {}) {
        this.address = find(o.address);
        this.token = o.token ?? (process.env["GLASSHOUSE_TOKEN"] || undefined);
        if (this.token !== undefined && !/^[\x21-\x7e]+$/.test(this.token))
            throw new Invalid("a token consists of printable ASCII characters", { field: "token" });
        const keep = { keepAlive: true, maxFreeSockets: 16 };
        this.agent = "protocol" in this.address && this.address.protocol === "https:" ? new https.Agent(keep) : new http.Agent(keep);
    }
    /** Closes idle connections. */
    close() {
        this.agent.destroy();
    }
    /**
     * Makes a request and resolves to the response if its status is a success. If the connection
     * breaks, it retries requests that are safe to repeat.
     */
    async open(r) {
        const again = r.method === "GET" || r.idempotencyKey !== undefined;
        for (let tries = 1;; tries++) {
            try {
                return await this.send(r);
            }
            catch (err) {
                if (!again || tries === TRIES || !(err instanceof Disconnected))
                    throw err;
            }
            await sleep(tries * TRY_MS, undefined, r.signal ? { signal: r.signal } : {});
        }
    }
    async send(r) {
        const answer = new Answer(await this.exchange(r));
        if (answer.status >= 200 && answer.status < 300)
            return answer;
        const text = await answer.text();
        if (answer.headers["content-type"]?.startsWith("application/problem+json")) {
            let problem;
            try {
                problem = JSON.parse(text);
            }
            catch {
                // Not problem details of a daemon: reported below.
            }
            if (problem)
                throw ofProblem(problem);
        }
        throw new GlasshouseError(`unexpected response with status ${answer.status}: is this a Glasshouse daemon?`, { status: answer.status });
    }
    exchange(r) {
        const content = r.body === undefined ? r.content : JSON.stringify(r.body);
        const headers = this.headers(r);
        const whole = typeof content === "string" || content instanceof Uint8Array;
        if (whole)
            headers["Content-Length"] = Buffer.byteLength(content);
        return new Promise((resolve, reject) => {
            const { request } = "protocol" in this.address && this.address.protocol === "https:" ? https : http;
            const req = request({
                ...this.address,
                agent: this.agent,
                method: r.method,
                path: r.path + query(r.query),
                headers,
                ...(r.signal ? { signal: r.signal } : {}),
            });
            let connected = false;
            req.on("socket", (socket) => {
                if (!socket.connecting) {
                    connected = true;
                    return;
                }
                const late = setTimeout(() => req.destroy(new Error(`connection timed out after ${CONNECT_MS / 1000} s`)), CONNECT_MS);
                socket.once("connect", () => {
                    connected = true;
                    socket.setKeepAlive(true);
                });
                for (const event of ["connect", "error", "close"])
                    socket.once(event, () => clearTimeout(late));
            });
            req.on("response", resolve);
            req.on("error", (err) => {
                if (r.signal?.aborted)
                    reject(r.signal.reason);
                else if (connected)
                    reject(broken(err));
                else
                    reject(new Unavailable(`no daemon answers: ${err.message}`, { remedy: "start one: glasshouse serve", cause: err }));
            });
            if (whole || content === undefined)
                req.end(content);
            else
                pipeline(Readable.from(content, { objectMode: false }), req).catch((err) => req.destroy(err));
        });
    }
    headers(r) {
        const h = { Accept: r.accept ?? "application/json" };
        if (r.body !== undefined)
            h["Content-Type"] = "application/json";
        else if (r.content !== undefined && r.contentType)
            h["Content-Type"] = r.contentType;
        else if (r.method !== "GET")
            h["Content-Length"] = 0;
        if (r.idempotencyKey !== undefined)
            h["Idempotency-Key"] = r.idempotencyKey;
        if (r.lastEventId !== undefined)
            h["Last-Event-ID"] = r.lastEventId;
        if (this.token !== undefined)
            h["Authorization"] = "Bearer " + this.token;
        return h;
    }
    // The forms of responses.
    async json(r) {
        return JSON.parse(await (await this.open(r)).text());
    }
    async none(r) {
        await (await this.open(r)).bytes();
    }
    async text(r) {
        return (await this.open(r)).text();
    }
    async events(r) {
        return eventsOf((await this.open(r)).lines());
    }
    async lines(r) {
        const answer = await this.open(r);
        return (async function* () {
            for await (const line of answer.lines())
                yield JSON.parse(line);
        })();
    }
}
function broken(cause) {
    if (cause instanceof GlasshouseError || (cause instanceof Error && cause.name === "AbortError"))
        return cause;
    return new Disconnected(`the connection to the daemon broke: ${cause instanceof Error ? cause.message : cause}`, { cause });
}
/** Encodes a query. undefined is omitted, and a list becomes one parameter for each item. */
function query(q = {}) {
    const said = new URLSearchParams();
    for (const [name, value] of Object.entries(q)) {
        for (const one of Array.isArray(value) ? value : [value])
            if (one !== undefined)
                said.append(name, String(one));
    }
    return said.size > 0 ? "?" + said : "";
}
