import type { Operations } from "./operations.js";
import type { ServerEvent } from "./sse.js";
import { Stream } from "./stream.js";
import type { Content } from "./transport.js";
import { type Output, outputOf, type Result, resultOf } from "./values.js";
import type * as wire from "./wire.js";

/**
 * A command that runs, or ran, in a jail: go through it for what it writes.
 *
 * It goes on whether or not anybody listens, and also without the daemon.
 */
export class Command implements AsyncIterable<Output> {
  readonly #api: Operations;
  readonly #jail: string;
  #first: { events: AsyncIterable<ServerEvent>; abort: AbortController } | undefined;
  #stream: Stream<Output> | undefined;
  /** What was last heard of it. */
  info: wire.Exec;

  constructor(api: Operations, jail: string, info: wire.Exec, first?: { events: AsyncIterable<ServerEvent>; abort: AbortController }) {
    this.#api = api;
    this.#jail = jail;
    this.info = info;
    this.#first = first;
  }

  get id(): string {
    return this.info.id;
  }

  /**
   * What it wrote and writes, from an offset on: without one, from the first that is
   * still kept. It goes on where it was when the connection breaks, to the end.
   */
  output(from?: number): Stream<Output> {
    const first = from === undefined ? this.#first : undefined;
    if (first) this.#first = undefined;
    return new Stream<Output>({
      ...first,
      connect: ({ lastEventId, signal }) =>
        this.#api.getJailsByIdExecsByExecStream(
          this.#jail,
          this.id,
          { from: lastEventId === undefined ? from : undefined },
          { signal, ...(lastEventId === undefined ? {} : { lastEventId }) },
        ),
      take: (event) => {
        if (event.name === "output") return { item: outputOf(event.data as wire.Output) };
        if (event.name !== "exit") return "nothing"; // a later daemon may say more
        this.info = event.data as wire.Exec;
        return "ended";
      },
    });
  }

  [Symbol.asyncIterator](): Stream<Output> {
    return (this.#stream ??= this.output());
  }

  /** Waits for its end. The result has the output that is still kept in the jail. */
  async wait(): Promise<Result> {
    if (this.info.exit_code == null) for await (const _ of this);
    return this.result();
  }

  /** What is known of it now. */
  async result(): Promise<Result> {
    this.info = await this.#api.getJailsByIdExecsByExec(this.#jail, this.id);
    return resultOf(this.info);
  }

  /** Gives it something to read, and with close then nothing more. */
  async write(data: Content, { close = false } = {}): Promise<void> {
    await this.#api.postJailsByIdExecsByExecStdin(this.#jail, this.id, data, { close });
  }

  closeStdin(): Promise<void> {
    return this.write("", { close: true });
  }

  /** Sends a signal to its process group: INT, TERM, KILL or a number. */
  signal(signal: string): Promise<void> {
    return this.#api.postJailsByIdExecsByExecSignal(this.#jail, this.id, { signal });
  }

  resize(cols: number, rows: number): Promise<void> {
    return this.#api.postJailsByIdExecsByExecResize(this.#jail, this.id, { cols, rows });
  }

  /** Listens no more. The command goes on. */
  close(): void {
    this.#stream?.close();
    this.#first?.abort.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
