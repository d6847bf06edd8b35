import { RunFailed } from "./errors.js";
import { number, pages } from "./jail.js";
import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
import type * as wire from "./wire.js";

/** An agent run for a goal. */
export class Run {
  constructor(
    readonly api: Operations,
    /** The last known state; refresh updates it. */
    public info: wire.Run,
  ) {}

  get id(): string {
    return this.info.id!;
  }

  /** The last known state. */
  get state(): NonNullable<wire.Run["state"]> {
    return this.info.state!;
  }

  /** The result, once the run is done. */
  get result(): string {
    return this.info.result ?? "";
  }

  async refresh(): Promise<wire.Run> {
    return (this.info = await this.api.getRun(this.id));
  }

  /**
   * Waits until the run is done, and resolves to its result. If it fails or is cancelled, it
   * throws RunFailed. While it is paused, for approval or a budget, it continues to wait.
   */
  async wait(): Promise<string> {
    await this.refresh();
    if (!this.#ended()) {
      // Read from the first event, so that no change after refresh is missed.
      for await (const event of sessionEvents(this.api, this.info.session_id!, 0)) {
        if (event.run !== this.id || event.kind !== "run.moved") continue;
        await this.refresh();
        if (this.#ended()) break;
      }
    }
    if (this.state === "done") return this.result;
    throw new RunFailed(`the run ${this.id} is ${this.state}: ${this.info.error || this.info.reason || this.state}`, this.info);
  }

  #ended(): boolean {
    return ["done", "failed", "cancelled"].includes(this.state);
  }

  /** Lists its actions in order. */
  actions(): AsyncGenerator<wire.RunAction, void, undefined> {
    return pages((after) => this.api.listActions(this.id, { after: number(after) }));
  }

  /** Pauses the run and freezes its jail. */
  async pause(): Promise<void> {
    this.info = await this.api.pauseRun(this.id);
  }

  /** Resumes the run, or restores it from a checkpoint. */
  async resume(how: wire.ResumeRun = {}): Promise<void> {
    const { runs } = await this.api.resumeRun(this.id, how, { idempotencyKey: newKey() });
    this.info = runs[0] ?? this.info;
  }

  /** Starts count runs from a checkpoint of this one. */
  async branch(count: number, how: Omit<wire.ResumeRun, "branch"> = {}): Promise<Run[]> {
    const { runs } = await this.api.resumeRun(this.id, { branch: count, ...how }, { idempotencyKey: newKey() });
    return runs.map((r) => new Run(this.api, r));
  }

  /** Cancels the run and its child runs. */
  async cancel(): Promise<void> {
    this.info = await this.api.cancelRun(this.id);
  }

  /** Takes a checkpoint of the run and its jail. */
  checkpoint(how: wire.TakeCheckpoint = {}): Promise<wire.Checkpoint> {
    return this.api.checkpointRun(this.id, how, { idempotencyKey: newKey() });
  }

  /** Lists its checkpoints, oldest first. */
  checkpoints(): AsyncGenerator<wire.Checkpoint, void, undefined> {
    return pages((after) => this.api.listCheckpoints(this.id, { after: number(after) }));
  }
}

/** A session: a conversation of a user with agents, with messages and runs that share a budget. */
export class Session {
  constructor(
    readonly api: Operations,
    public info: wire.Session,
  ) {}

  get id(): string {
    return this.info.id!;
  }

  /** Starts an agent run for a goal: now, at a time, or by a schedule. */
  run(goal: string, how: Omit<wire.StartRun, "goal" | "session_id"> = {}): Promise<Run> {
    return startRun(this.api, { ...how, goal, session_id: this.id });
  }

  /** Sends a message to its agent. */
  send(text: string, how: Omit<wire.SendMessage, "text" | "session_id"> = {}): Promise<wire.Message> {
    return this.api.sendMessage({ ...how, text, session_id: this.id }, { idempotencyKey: newKey() });
  }

  /** Lists its messages, oldest first, in one direction or both. */
  messages(direction?: "in" | "out"): AsyncGenerator<wire.Message, void, undefined> {
    return pages((after) => this.api.listMessages({ session_id: this.id, direction, after: number(after) }));
  }

  /** Streams its events after a sequence number. */
  events(after = 0): Stream<wire.RunEvent> {
    return sessionEvents(this.api, this.id, after);
  }

  /** Closes the session. Its messages are kept. */
  close(): Promise<void> {
    return this.api.closeSession(this.id);
  }
}

/** A schedule of runs. */
export class Schedule {
  constructor(
    readonly api: Operations,
    public info: wire.Schedule,
  ) {}

  get id(): string {
    return this.info.id!;
  }

  /** Updates info, including the next ten times. */
  async refresh(): Promise<wire.Schedule> {
    return (this.info = await this.api.getSchedule(this.id));
  }

  async pause(): Promise<void> {
    this.info = await this.api.pauseSchedule(this.id);
  }

  async resume(): Promise<void> {
    this.info = await this.api.resumeSchedule(this.id);
  }

  /** Deletes the schedule. Runs that it has started are kept. */
  delete(): Promise<void> {
    return this.api.deleteSchedule(this.id);
  }
}

export async function startRun(api: Operations, how: wire.StartRun): Promise<Run> {
  return new Run(api, await api.startRun(how, { idempotencyKey: newKey() }));
}

function sessionEvents(api: Operations, session: string, after: number): Stream<wire.RunEvent> {
  return new Stream<wire.RunEvent>({
    connect: ({ lastEventId, signal }) =>
      lastEventId === undefined
        ? api.streamSession(session, { after }, { signal })
        : api.streamSession(session, {}, { signal, lastEventId }),
    take: (event) => ({ item: event.data as wire.RunEvent }),
  });
}
