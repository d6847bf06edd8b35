import { randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { type Address, find } from "./address.js";
import { Disconnected, GlasshouseError, Invalid, ofProblem, Unavailable } from "./errors.js";
import { eventsOf, type ServerEvent } from "./sse.js";

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

// Maximum attempts of a request that can be retried, and the delay before a retry.
const TRIES = 3;
const TRY_MS = 200;
const CONNECT_MS = 10_000;
const LONGEST_LINE = 4 << 20;

/** Encodes a value as a path element. */
export const part = (value: string | number) => encodeURIComponent(value);

/** Returns an idempotency key: the daemon executes requests with the same key once. */
export const newKey = () => randomBytes(16).toString("hex");

/** A response whose body has not been read. Read it, iterate over it, or close it. */
export class Answer implements AsyncIterable<Uint8Array> {
  constructor(private readonly message: http.IncomingMessage) {
    message.on("error", () => {}); // readers get the error from the iterator; without a listener it would end the process
  }

  get status(): number {
    return this.message.statusCode ?? 0;
  }

  get headers(): http.IncomingHttpHeaders {
    return this.message.headers;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for await (const piece of this.message) yield piece as Buffer;
    } catch (cause) {
      throw broken(cause);
    }
  }

  /** Reads the whole body. */
  async bytes(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const piece of this) pieces.push(piece);
    return Buffer.concat(pieces);
  }

  async text(): Promise<string> {
    return Buffer.from(await this.bytes()).toString("utf8");
  }

  /** Iterates over the lines of the body. An incomplete last line is dropped. */
  async *lines(): AsyncGenerator<string, void, undefined> {
    let rest: Buffer[] = [];
    let size = 0;
    for await (const piece of this) {
      let from = 0;
      for (let end: number; (end = piece.indexOf(10, from)) >= 0; from = end + 1) {
        rest.push(Buffer.from(piece.subarray(from, end)));
        const line = Buffer.concat(rest).toString("utf8");
        [rest, size] = [[], 0];
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
      }
      rest.push(Buffer.from(piece.subarray(from)));
      size += piece.length - from;
      if (size > LONGEST_LINE) throw new GlasshouseError("a line of the response is too long");
    }
  }

  /** Discards the unread rest of the body. It may be called twice. */
  close(): void {
    this.message.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}

/** Makes requests to one daemon. */
export class Transport {
  private readonly address: Address;
  private readonly token: string | undefined;
  private readonly agent: http.Agent;

  constructor(o: Options = {}) {
    this.address = find(o.address);
    this.token = o.token ?? (process.env["GLASSHOUSE_TOKEN"] || undefined);
    if (this.token !== undefined && !/^[\x21-\x7e]+$/.test(this.token)) throw new Invalid("a token consists of printable ASCII characters", { field: "token" });
    const keep = { keepAlive: true, maxFreeSockets: 16 };
    this.agent = "protocol" in this.address && this.address.protocol === "https:" ? new https.Agent(keep) : new http.Agent(keep);
  }

  /** Closes idle connections. */
  close(): void {
    this.agent.destroy();
  }

  /**
   * Makes a request and resolves to the response if its status is a success. If the connection
   * breaks, it retries requests that are safe to repeat.
   */
  async open(r: Request): Promise<Answer> {
    const again = r.method === "GET" || r.idempotencyKey !== undefined;
    for (let tries = 1; ; tries++) {
      try {
        return await this.send(r);
      } catch (err) {
        if (!again || tries === TRIES || !(err instanceof Disconnected)) throw err;
      }
      await sleep(tries * TRY_MS, undefined, r.signal ? { signal: r.signal } : {});
    }
  }

  private async send(r: Request): Promise<Answer> {
    const answer = new Answer(await this.exchange(r));
    if (answer.status >= 200 && answer.status < 300) return answer;
    const text = await answer.text();
    if (answer.headers["content-type"]?.startsWith("application/problem+json")) {
      let problem;
      try {
        problem = JSON.parse(text);
      } catch {
        // Not problem details of a daemon: reported below.
      }
      if (problem) throw ofProblem(problem);
    }
    throw new GlasshouseError(`unexpected response with status ${answer.status}: is this a Glasshouse daemon?`, { status: answer.status });
  }

  private exchange(r: Request): Promise<http.IncomingMessage> {
    const content = r.body === undefined ? r.content : JSON.stringify(r.body);
    const headers = this.headers(r);
    const whole = typeof content === "string" || content instanceof Uint8Array;
    if (whole) headers["Content-Length"] = Buffer.byteLength(content);
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
        for (const event of ["connect", "error", "close"]) socket.once(event, () => clearTimeout(late));
      });
      req.on("response", resolve);
      req.on("error", (err: Error) => {
        if (r.signal?.aborted) reject(r.signal.reason);
        else if (connected) reject(broken(err));
        else reject(new Unavailable(`no daemon answers: ${err.message}`, { remedy: "start one: glasshouse serve", cause: err }));
      });
      if (whole || content === undefined) req.end(content);
      else pipeline(Readable.from(content, { objectMode: false }), req).catch((err: Error) => req.destroy(err));
    });
  }

  private headers(r: Request): http.OutgoingHttpHeaders {
    const h: http.OutgoingHttpHeaders = { Accept: r.accept ?? "application/json" };
    if (r.body !== undefined) h["Content-Type"] = "application/json";
    else if (r.content !== undefined && r.contentType) h["Content-Type"] = r.contentType;
    else if (r.method !== "GET") h["Content-Length"] = 0;
    if (r.idempotencyKey !== undefined) h["Idempotency-Key"] = r.idempotencyKey;
    if (r.lastEventId !== undefined) h["Last-Event-ID"] = r.lastEventId;
    if (this.token !== undefined) h["Authorization"] = "Bearer " + this.token;
    return h;
  }

  // The forms of responses.

  protected async json<T>(r: Request): Promise<T> {
    return JSON.parse(await (await this.open(r)).text()) as T;
  }

  protected async none(r: Request): Promise<void> {
    await (await this.open(r)).bytes();
  }

  protected async text(r: Request): Promise<string> {
    return (await this.open(r)).text();
  }

  protected async events(r: Request): Promise<AsyncIterable<ServerEvent>> {
    return eventsOf((await this.open(r)).lines());
  }

  protected async lines<T>(r: Request): Promise<AsyncIterable<T>> {
    const answer = await this.open(r);
    return (async function* () {
      for await (const line of answer.lines()) yield JSON.parse(line) as T;
    })();
  }
}

function broken(cause: unknown): Error {
  if (cause instanceof GlasshouseError || (cause instanceof Error && cause.name === "AbortError")) return cause;
  return new Disconnected(`the connection to the daemon broke: ${cause instanceof Error ? cause.message : cause}`, { cause });
}

/** Encodes a query. undefined is omitted, and a list becomes one parameter for each item. */
function query(q: Query = {}): string {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(q)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined) said.append(name, String(one));
  }
  return said.size > 0 ? "?" + said : "";
}
