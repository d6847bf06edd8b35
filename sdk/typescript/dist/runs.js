import { RunFailed } from "./errors.js";
import { number, pages } from "./jail.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
/** An agent run for a goal. */
export class Run {
    api;
    info;
    constructor(api, 
    /** The last known state; refresh updates it. */
    info) {
        this.api = api;
        this.info = info;
    }
    get id() {
        return this.info.id;
    }
    /** The last known state. */
    get state() {
        return this.info.state;
    }
    /** The result, once the run is done. */
    get result() {
        return this.info.result ?? "";
    }
    async refresh() {
        return (this.info = await this.api.getRun(this.id));
    }
    /**
     * Waits until the run is done, and resolves to its result. If it fails or is cancelled, it
     * throws RunFailed. While it is paused, for approval or a budget, it continues to wait.
     */
    async wait() {
        await this.refresh();
        if (!this.#ended()) {
            // Read from the first event, so that no change after refresh is missed.
            for await (const event of sessionEvents(this.api, this.info.session_id, 0)) {
                if (event.run !== this.id || event.kind !== "run.moved")
                    continue;
                await this.refresh();
                if (this.#ended())
                    break;
            }
        }
        if (this.state === "done")
            return this.result;
        throw new RunFailed(`the run ${this.id} is ${this.state}: ${this.info.error || this.info.reason || this.state}`, this.info);
    }
    #ended() {
        return ["done", "failed", "cancelled"].includes(this.state);
    }
    /** Lists its actions in order. */
    actions() {
        return pages((after) => this.api.listActions(this.id, { after: number(after) }));
    }
    /** Pauses the run and freezes its jail. */
    async pause() {
        this.info = await this.api.pauseRun(this.id);
    }
    /** Resumes the run, or restores it from a checkpoint. */
    async resume(how = {}) {
        const { runs } = await this.api.resumeRun(this.id, how, { idempotencyKey: newKey() });
        this.info = runs[0] ?? this.info;
    }
    /** Starts count runs from a checkpoint of this one. */
    async branch(count, how = {}) {
        const { runs } = await this.api.resumeRun(this.id, { branch: count, ...how }, { idempotencyKey: newKey() });
        return runs.map((r) => new Run(this.api, r));
    }
    /** Cancels the run and its child runs. */
    async cancel() {
        this.info = await this.api.cancelRun(this.id);
    }
    /** Takes a checkpoint of the run and its jail. */
    checkpoint(how = {}) {
        return this.api.checkpointRun(this.id, how, { idempotencyKey: newKey() });
    }
    /** Lists its checkpoints, oldest first. */
    checkpoints() {
        return pages((after) => this.api.listCheckpoints(this.id, { after: number(after) }));
    }
}
/** A session: a conversation of a user with agents, with messages and runs that share a budget. */
export class Session {
    api;
    info;
    constructor(api, info) {
        this.api = api;
        this.info = info;
    }
    get id() {
        return this.info.id;
    }
    /** Starts an agent run for a goal: now, at a time, or by a schedule. */
    run(goal, how = {}) {
        return startRun(this.api, { ...how, goal, session_id: this.id });
    }
    /** Sends a message to its agent. */
    send(text, how = {}) {
        return this.api.sendMessage({ ...how, text, session_id: this.id }, { idempotencyKey: newKey() });
    }
    /** Lists its messages, oldest first, in one direction or both. */
    messages(direction) {
        return pages((after) => this.api.listMessages({ session_id: this.id, direction, after: number(after) }));
    }
    /** Streams its events after a sequence number. */
    events(after = 0) {
        return sessionEvents(this.api, this.id, after);
    }
    /** Closes the session. Its messages are kept. */
    close() {
        return this.api.closeSession(this.id);
    }
}
/** A schedule of runs. */
export class Schedule {
    api;
    info;
    constructor(api, info) {
        this.api = api;
        this.info = info;
    }
    get id() {
        return this.info.id;
    }
    /** Updates info, including the next ten times. */
    async refresh() {
        return (this.info = await this.api.getSchedule(this.id));
    }
    async pause() {
        this.info = await this.api.pauseSchedule(this.id);
    }
    async resume() {
        this.info = await this.api.resumeSchedule(this.id);
    }
    /** Deletes the schedule. Runs that it has started are kept. */
    delete() {
        return this.api.deleteSchedule(this.id);
    }
}
export async function startRun(api, how) {
    return new Run(api, await api.startRun(how, { idempotencyKey: newKey() }));
}
function sessionEvents(api, session, after) {
    return new Stream({
        connect: ({ lastEventId, signal }) => lastEventId === undefined
            ? api.streamSession(session, { after }, { signal })
            : api.streamSession(session, {}, { signal, lastEventId }),
        take: (event) => ({ item: event.data }),
    });
}
