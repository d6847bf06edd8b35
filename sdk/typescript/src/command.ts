import type { Operations } from "./operations.js";
import type { ServerEvent } from "./sse.js";
import { Stream } from "./stream.js";
import type { Content } from "./transport.js";
import { type Output, outputOf, type Result, resultOf } from "./values.js";
import type * as wire from "./wire.js";

/**
 * A command that runs, or ran, in a jail. Iterate over it to read its output.
 *
 * It runs independently of this client and of the daemon.
 */
export class Command implements AsyncIterable<Output> {
  readonly #api: Operations;
  readonly #jail: string;
  #first: { events: AsyncIterable<ServerEvent>; abort: AbortController } | undefined;
  #stream: Stream<Output> | undefined;
  /** The last known state. */
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
   * Streams the output from an offset to the end; by default from the first byte that is
   * still stored. The stream resumes if the connection breaks.
   */
  output(from?: number): Stream<Output> {
    const first = from === undefined ? this.#first : undefined;
    if (first) this.#first = undefined;
    return new Stream<Output>({
      ...first,
      connect: ({ lastEventId, signal }) =>
        this.#api.getExecStream(
          this.#jail,
          this.id,
          { from: lastEventId === undefined ? from : undefined },
          { signal, ...(lastEventId === undefined ? {} : { lastEventId }) },
        ),
      take: (event) => {
        if (event.name === "output") return { item: outputOf(event.data as wire.Output) };
        if (event.name !== "exit") return "nothing"; // other events may be added by later versions
        this.info = event.data as wire.Exec;
        return "ended";
      },
    });
  }

  [Symbol.asyncIterator](): Stream<Output> {
    return (this.#stream ??= this.output());
  }

  /** Waits for the end of the command. The result contains all output that is still stored in the jail. */
  async wait(): Promise<Result> {
    if (this.info.exit_code == null) for await (const _ of this);
    return this.result();
  }

  /** Returns the current state. */
  async result(): Promise<Result> {
    this.info = await this.#api.getExec(this.#jail, this.id);
    return resultOf(this.info);
  }

  /** Writes to its standard input, and with close then closes it. */
  async write(data: Content, { close = false } = {}): Promise<void> {
    await this.#api.writeStdin(this.#jail, this.id, data, { close });
  }

  closeStdin(): Promise<void> {
    return this.write("", { close: true });
  }

  /** Sends a signal to its process group: INT, TERM, KILL or a number. */
  signal(signal: string): Promise<void> {
    return this.#api.signalExec(this.#jail, this.id, { signal });
  }

  resize(cols: number, rows: number): Promise<void> {
    return this.#api.resizeExec(this.#jail, this.id, { cols, rows });
  }

  /** Stops reading output. The command continues to run. */
  close(): void {
    this.#stream?.close();
    this.#first?.abort.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
