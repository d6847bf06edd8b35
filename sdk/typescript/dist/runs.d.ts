import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import type * as wire from "./wire.js";
/** An agent that pursues a goal. */
export declare class Run {
    #private;
    readonly api: Operations;
    /** What was last heard of it; refresh asks anew. */
    info: wire.Run;
    constructor(api: Operations, 
    /** What was last heard of it; refresh asks anew. */
    info: wire.Run);
    get id(): string;
    /** As it was when last heard of. */
    get state(): NonNullable<wire.Run["state"]>;
    /** What it came to, once it is done. */
    get result(): string;
    refresh(): Promise<wire.Run>;
    /**
     * Waits until it is done, and resolves to its result. One that fails or is cancelled
     * throws RunFailed. One that pauses, for a person or a budget, is waited for.
     */
    wait(): Promise<string>;
    /** What it has done, in its order. */
    actions(): AsyncGenerator<wire.RunAction, void, undefined>;
    /** Has it wait. Its jail stands still. */
    pause(): Promise<void>;
    /** Has it go on where it was, or go back to a checkpoint. */
    resume(how?: wire.ResumeRun): Promise<void>;
    /** Has so many others go on from a checkpoint of it. */
    branch(count: number, how?: Omit<wire.ResumeRun, "branch">): Promise<Run[]>;
    /** Ends it and those that are a part of it. */
    cancel(): Promise<void>;
    /** Keeps it as it is, with its jail. */
    checkpoint(how?: wire.TakeCheckpoint): Promise<wire.Checkpoint>;
    /** Its checkpoints, oldest first. */
    checkpoints(): AsyncGenerator<wire.Checkpoint, void, undefined>;
}
/** Somebody's conversation with agents: messages, and runs that share a budget. */
export declare class Session {
    readonly api: Operations;
    info: wire.Session;
    constructor(api: Operations, info: wire.Session);
    get id(): string;
    /** Has an agent pursue a goal: now, at a time, or by a schedule. */
    run(goal: string, how?: Omit<wire.StartRun, "goal" | "session_id">): Promise<Run>;
    /** Tells its agent something. */
    send(text: string, how?: Omit<wire.SendMessage, "text" | "session_id">): Promise<wire.Message>;
    /** What was said, oldest first, in one direction or both. */
    messages(direction?: "in" | "out"): AsyncGenerator<wire.Message, void, undefined>;
    /** What happens in it, from after a seq on, for as long as one asks. */
    events(after?: number): Stream<wire.RunEvent>;
    /** Closes it. What was said in it stays. */
    close(): Promise<void>;
}
/** When runs are made. */
export declare class Schedule {
    readonly api: Operations;
    info: wire.Schedule;
    constructor(api: Operations, info: wire.Schedule);
    get id(): string;
    /** Asks how it is now, and for its next ten times. */
    refresh(): Promise<wire.Schedule>;
    pause(): Promise<void>;
    resume(): Promise<void>;
    /** Removes it. Runs that it has made stay. */
    delete(): Promise<void>;
}
export declare function startRun(api: Operations, how: wire.StartRun): Promise<Run>;
