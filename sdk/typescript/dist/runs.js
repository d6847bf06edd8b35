import { RunFailed } from "./errors.js";
import { number, pages } from "./jail.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
/** An agent that pursues a goal. */
export class Run {
    api;
    info;
    constructor(api, 
    /** What was last heard of it; refresh asks anew. */
    info) {
        this.api = api;
        this.info = info;
    }
    get id() {
        return this.info.id;
    }
    /** As it was when last heard of. */
    get state() {
        return this.info.state;
    }
    /** What it came to, once it is done. */
    get result() {
        return this.info.result ?? "";
    }
    async refresh() {
        return (this.info = await this.api.getChatRunByRun(this.id));
    }
    /**
     * Waits until it is done, and resolves to its result. One that fails or is cancelled
     * throws RunFailed. One that pauses, for a person or a budget, is waited for.
     */
    async wait() {
        await this.refresh();
        if (!this.#ended()) {
            // Told from the first event on, so that none is missed between the two.
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
    /** What it has done, in its order. */
    actions() {
        return pages((after) => this.api.getChatRunByRunActions(this.id, { after: number(after) }));
    }
    /** Has it wait. Its jail stands still. */
    async pause() {
        this.info = await this.api.postChatRunByRunPause(this.id);
    }
    /** Has it go on where it was, or go back to a checkpoint. */
    async resume(how = {}) {
        const { runs } = await this.api.postChatRunByRunResume(this.id, how, { idempotencyKey: newKey() });
        this.info = runs[0] ?? this.info;
    }
    /** Has so many others go on from a checkpoint of it. */
    async branch(count, how = {}) {
        const { runs } = await this.api.postChatRunByRunResume(this.id, { branch: count, ...how }, { idempotencyKey: newKey() });
        return runs.map((r) => new Run(this.api, r));
    }
    /** Ends it and those that are a part of it. */
    async cancel() {
        this.info = await this.api.postChatRunByRunCancel(this.id);
    }
    /** Keeps it as it is, with its jail. */
    checkpoint(how = {}) {
        return this.api.postChatRunByRunCheckpoint(this.id, how, { idempotencyKey: newKey() });
    }
    /** Its checkpoints, oldest first. */
    checkpoints() {
        return pages((after) => this.api.getChatRunByRunCheckpoints(this.id, { after: number(after) }));
    }
}
/** Somebody's conversation with agents: messages, and runs that share a budget. */
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
    /** Has an agent pursue a goal: now, at a time, or by a schedule. */
    run(goal, how = {}) {
        return startRun(this.api, { ...how, goal, session_id: this.id });
    }
    /** Tells its agent something. */
    send(text, how = {}) {
        return this.api.postChatSend({ ...how, text, session_id: this.id }, { idempotencyKey: newKey() });
    }
    /** What was said, oldest first, in one direction or both. */
    messages(direction) {
        return pages((after) => this.api.getChatInbox({ session_id: this.id, direction, after: number(after) }));
    }
    /** What happens in it, from after a seq on, for as long as one asks. */
    events(after = 0) {
        return sessionEvents(this.api, this.id, after);
    }
    /** Closes it. What was said in it stays. */
    close() {
        return this.api.deleteChatSessionBySession(this.id);
    }
}
/** When runs are made. */
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
    /** Asks how it is now, and for its next ten times. */
    async refresh() {
        return (this.info = await this.api.getSchedulesBySchedule(this.id));
    }
    async pause() {
        this.info = await this.api.postSchedulesBySchedulePause(this.id);
    }
    async resume() {
        this.info = await this.api.postSchedulesByScheduleResume(this.id);
    }
    /** Removes it. Runs that it has made stay. */
    delete() {
        return this.api.deleteSchedulesBySchedule(this.id);
    }
}
export async function startRun(api, how) {
    return new Run(api, await api.postChatRun(how, { idempotencyKey: newKey() }));
}
function sessionEvents(api, session, after) {
    return new Stream({
        connect: ({ lastEventId, signal }) => lastEventId === undefined
            ? api.getChatEventsBySession(session, { after }, { signal })
            : api.getChatEventsBySession(session, {}, { signal, lastEventId }),
        take: (event) => ({ item: event.data }),
    });
}
