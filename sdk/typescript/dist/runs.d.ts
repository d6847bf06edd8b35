import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import type * as wire from "./wire.js";
/** An agent run for a goal. */
export declare class Run {
    #private;
    readonly api: Operations;
    /** The last known state; refresh updates it. */
    info: wire.Run;
    constructor(api: Operations, 
    /** The last known state; refresh updates it. */
    info: wire.Run);
    get id(): string;
    /** The last known state. */
    get state(): NonNullable<wire.Run["state"]>;
    /** The result, once the run is done. */
    get result(): string;
    refresh(): Promise<wire.Run>;
    /**
     * Waits until the run is done, and resolves to its result. If it fails or is cancelled, it
     * throws RunFailed. While it is paused, for approval or a budget, it continues to wait.
     */
    wait(): Promise<string>;
    /** Lists its actions in order. */
    actions(): AsyncGenerator<wire.RunAction, void, undefined>;
    /** Pauses the run and freezes its jail. */
    pause(): Promise<void>;
    /** Resumes the run, or restores it from a checkpoint. */
    resume(how?: wire.ResumeRun): Promise<void>;
    /** Starts count runs from a checkpoint of this one. */
    branch(count: number, how?: Omit<wire.ResumeRun, "branch">): Promise<Run[]>;
    /** Cancels the run and its child runs. */
    cancel(): Promise<void>;
    /** Takes a checkpoint of the run and its jail. */
    checkpoint(how?: wire.TakeCheckpoint): Promise<wire.Checkpoint>;
    /** Lists its checkpoints, oldest first. */
    checkpoints(): AsyncGenerator<wire.Checkpoint, void, undefined>;
}
/** A session: a conversation of a user with agents, with messages and runs that share a budget. */
export declare class Session {
    readonly api: Operations;
    info: wire.Session;
    constructor(api: Operations, info: wire.Session);
    get id(): string;
    /** Starts an agent run for a goal: now, at a time, or by a schedule. */
    run(goal: string, how?: Omit<wire.StartRun, "goal" | "session_id">): Promise<Run>;
    /** Sends a message to its agent. */
    send(text: string, how?: Omit<wire.SendMessage, "text" | "session_id">): Promise<wire.Message>;
    /** Lists its messages, oldest first, in one direction or both. */
    messages(direction?: "in" | "out"): AsyncGenerator<wire.Message, void, undefined>;
    /** Streams its events after a sequence number. */
    events(after?: number): Stream<wire.RunEvent>;
    /** Closes the session. Its messages are kept. */
    close(): Promise<void>;
}
/** A schedule of runs. */
export declare class Schedule {
    readonly api: Operations;
    info: wire.Schedule;
    constructor(api: Operations, info: wire.Schedule);
    get id(): string;
    /** Updates info, including the next ten times. */
    refresh(): Promise<wire.Schedule>;
    pause(): Promise<void>;
    resume(): Promise<void>;
    /** Deletes the schedule. Runs that it has started are kept. */
    delete(): Promise<void>;
}
export declare function startRun(api: Operations, how: wire.StartRun): Promise<Run>;
