import { Stream } from "./stream.js";
import { outputOf, resultOf } from "./values.js";
/**
 * A command that runs, or ran, in a jail: go through it for what it writes.
 *
 * It goes on whether or not anybody listens, and also without the daemon.
 */
export class Command {
    #api;
    #jail;
    #first;
    #stream;
    /** What was last heard of it. */
    info;
    constructor(api, jail, info, first) {
        this.#api = api;
        this.#jail = jail;
        this.info = info;
        this.#first = first;
    }
    get id() {
        return this.info.id;
    }
    /**
     * What it wrote and writes, from an offset on: without one, from the first that is
     * still kept. It goes on where it was when the connection breaks, to the end.
     */
    output(from) {
        const first = from === undefined ? this.#first : undefined;
        if (first)
            this.#first = undefined;
        return new Stream({
            ...first,
            connect: ({ lastEventId, signal }) => this.#api.getJailsByIdExecsByExecStream(this.#jail, this.id, { from: lastEventId === undefined ? from : undefined }, { signal, ...(lastEventId === undefined ? {} : { lastEventId }) }),
            take: (event) => {
                if (event.name === "output")
                    return { item: outputOf(event.data) };
                if (event.name !== "exit")
                    return "nothing"; // a later daemon may say more
                this.info = event.data;
                return "ended";
            },
        });
    }
    [Symbol.asyncIterator]() {
        return (this.#stream ??= this.output());
    }
    /** Waits for its end. The result has the output that is still kept in the jail. */
    async wait() {
        if (this.info.exit_code == null)
            for await (const _ of this)
                ;
        return this.result();
    }
    /** What is known of it now. */
    async result() {
        this.info = await this.#api.getJailsByIdExecsByExec(this.#jail, this.id);
        return resultOf(this.info);
    }
    /** Gives it something to read, and with close then nothing more. */
    async write(data, { close = false } = {}) {
        await this.#api.postJailsByIdExecsByExecStdin(this.#jail, this.id, data, { close });
    }
    closeStdin() {
        return this.write("", { close: true });
    }
    /** Sends a signal to its process group: INT, TERM, KILL or a number. */
    signal(signal) {
        return this.#api.postJailsByIdExecsByExecSignal(this.#jail, this.id, { signal });
    }
    resize(cols, rows) {
        return this.#api.postJailsByIdExecsByExecResize(this.#jail, this.id, { cols, rows });
    }
    /** Listens no more. The command goes on. */
    close() {
        this.#stream?.close();
        this.#first?.abort.abort();
    }
    async [Symbol.asyncDispose]() {
        this.close();
    }
}
