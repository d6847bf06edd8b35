import { Stream } from "./stream.js";
import { outputOf, resultOf } from "./values.js";
/**
 * A command that runs, or ran, in a jail. Iterate over it to read its output.
 *
 * It runs independently of this client and of the daemon.
 */
export class Command {
    #api;
    #jail;
    #first;
    #stream;
    /** The last known state. */
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
     * Streams the output from an offset to the end; by default from the first byte that is
     * still stored. The stream resumes if the connection breaks.
     */
    output(from) {
        const first = from === undefined ? this.#first : undefined;
        if (first)
            this.#first = undefined;
        return new Stream({
            ...first,
            connect: ({ lastEventId, signal }) => this.#api.getExecStream(this.#jail, this.id, { from: lastEventId === undefined ? from : undefined }, { signal, ...(lastEventId === undefined ? {} : { lastEventId }) }),
            take: (event) => {
                if (event.name === "output")
                    return { item: outputOf(event.data) };
                if (event.name !== "exit")
                    return "nothing"; // other events may be added by later versions
                this.info = event.data;
                return "ended";
            },
        });
    }
    [Symbol.asyncIterator]() {
        return (this.#stream ??= this.output());
    }
    /** Waits for the end of the command. The result contains all output that is still stored in the jail. */
    async wait() {
        if (this.info.exit_code == null)
            for await (const _ of this)
                ;
        return this.result();
    }
    /** Returns the current state. */
    async result() {
        this.info = await this.#api.getExec(this.#jail, this.id);
        return resultOf(this.info);
    }
    /** Writes to its standard input, and with close then closes it. */
    async write(data, { close = false } = {}) {
        await this.#api.writeStdin(this.#jail, this.id, data, { close });
    }
    closeStdin() {
        return this.write("", { close: true });
    }
    /** Sends a signal to its process group: INT, TERM, KILL or a number. */
    signal(signal) {
        return this.#api.signalExec(this.#jail, this.id, { signal });
    }
    resize(cols, rows) {
        return this.#api.resizeExec(this.#jail, this.id, { cols, rows });
    }
    /** Stops reading output. The command continues to run. */
    close() {
        this.#stream?.close();
        this.#first?.abort.abort();
    }
    async [Symbol.asyncDispose]() {
        this.close();
    }
}
