import { Command } from "./command.js";
import { Disconnected, GlasshouseError, type ErrorDetails, NotFound, ofProblem } from "./errors.js";
import { Files } from "./files.js";
import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
import { type CommandLine, execRequest, type Result, resultOf, type RunOptions } from "./values.js";
import type * as wire from "./wire.js";

export interface EventQuery {
  /** Only events from this time (RFC 3339) or duration before now, such as 5m. */
  since?: string;
  /** Only events until this time. */
  until?: string;
  /** Only events with a larger sequence number. */
  after?: number;
  /** Only this many of the last past events. */
  tail?: number;
  /** Maximum number of events. */
  limit?: number;
  /** Continue with new events (default true). */
  follow?: boolean;
}

/** Options of a comparison. */
export interface DiffOptions {
  /** Default: all. */
  only?: ("files" | "workspace" | "processes" | "events" | "usage")[];
  /** Include unified diffs of text files. */
  unified?: boolean;
}

/** A jail. `await using` removes it at the end of the block. */
export class Jail {
  readonly files: Files;

  constructor(
    readonly api: Operations,
    /** The last known state; refresh updates it. */
    public info: wire.Jail,
  ) {
    this.files = new Files(api, info.id);
  }

  get id(): string {
    return this.info.id;
  }

  get name(): string {
    return this.info.name ?? "";
  }

  /** The last known state. */
  get state(): wire.Jail["state"] {
    return this.info.state;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await gone(this.delete());
  }

  /** Updates info, including resource usage. */
  async refresh(): Promise<wire.Jail> {
    return (this.info = await this.api.getJail(this.id));
  }

  async start(): Promise<void> {
    this.info = await this.api.startJail(this.id);
  }

  /** Ends all processes. grace is the time in milliseconds between SIGTERM and SIGKILL. Files are kept. */
  async stop({ grace }: { grace?: number } = {}): Promise<void> {
    this.info = await this.api.stopJail(this.id, grace === undefined ? undefined : { grace_ms: grace });
  }

  /** Freezes all processes. */
  async pause(): Promise<void> {
    this.info = await this.api.pauseJail(this.id);
  }

  async resume(): Promise<void> {
    this.info = await this.api.resumeJail(this.id);
  }

  /** Removes the jail and its files, and with snapshots also its snapshots. */
  delete({ snapshots }: { snapshots?: boolean } = {}): Promise<void> {
    return this.api.deleteJail(this.id, { snapshots });
  }

  /** Changes resource limits while the jail runs. Limits that are not given do not change. */
  async setLimits(limits: wire.Limits): Promise<void> {
    this.info = await this.api.updateJailLimits(this.id, limits);
  }

  // Commands.

  /** Runs a command and waits for its end. With check, an exit code other than 0 throws CommandFailed. */
  async run(command: CommandLine, { check = false, ...how }: RunOptions & { check?: boolean } = {}): Promise<Result> {
    const result = resultOf(await this.api.execCommand(this.id, execRequest(command, how)));
    return check ? result.check() : result;
  }

  /**
   * Runs a command and streams its output. With stdinOpen, write() writes to its standard
   * input. With lossless, a slow reader blocks the command instead of losing output.
   */
  async stream(command: CommandLine, { stdinOpen, lossless, ...how }: RunOptions & { stdinOpen?: boolean; lossless?: boolean } = {}): Promise<Command> {
    const request: wire.ExecRequest = { ...execRequest(command, how), stream: true };
    if (stdinOpen) request.stdin_open = true;
    if (lossless) request.lossless = true;
    const abort = new AbortController();
    const events = (await this.api.execCommandStream(this.id, request, { signal: abort.signal }))[Symbol.asyncIterator]();
    const { value: start, done } = await events.next();
    if (done) throw new Disconnected("the connection was closed before the command's id was received");
    if (start.name === "error") throw ofProblem(start.data as wire.Problem);
    return new Command(this.api, this.id, start.data as wire.Exec, { events: { [Symbol.asyncIterator]: () => events }, abort });
  }

  /** Starts a command in the background. Its output is stored in the jail. */
  async spawn(command: CommandLine, { stdinOpen, ...how }: RunOptions & { stdinOpen?: boolean } = {}): Promise<Command> {
    const request: wire.ExecRequest = { ...execRequest(command, how), detach: true };
    if (stdinOpen) request.stdin_open = true;
    return new Command(this.api, this.id, await this.api.execCommand(this.id, request, { idempotencyKey: newKey() }));
  }

  /** Returns a command that was started before. */
  async command(id: string): Promise<Command> {
    return new Command(this.api, this.id, await this.api.getExec(this.id, id));
  }

  /** Lists the commands that are still known, oldest first. */
  commands(): AsyncGenerator<wire.Exec, void, undefined> {
    return pages((after) => this.api.listExecs(this.id, { after }));
  }

  // Events.

  /**
   * Streams events, oldest first: past events and, by default, new ones. The filter consists
   * of terms separated by spaces, such as "type:file path:/etc ret:<0". The stream ends with
   * the jail and resumes after a restart of the daemon.
   */
  events(filter?: string, q: EventQuery = {}): Stream<wire.Event> {
    return new Stream<wire.Event>({
      connect: ({ lastEventId, told, signal }) => {
        const back = lastEventId !== undefined;
        const query = {
          q: filter,
          since: q.since,
          until: q.until,
          after: back ? undefined : q.after,
          tail: back ? undefined : q.tail,
          limit: q.limit === undefined ? undefined : q.limit - told,
          follow: q.follow ?? true,
        };
        return this.api.streamEventsStream(this.id, query, back ? { signal, lastEventId } : { signal });
      },
      take: (event) => ({ item: event.data as wire.Event }),
    });
  }

  /** Lists processes, each after its parent: now, at a time, at a duration before now, or at a sequence number. */
  async processes({ at, all }: { at?: string; all?: boolean } = {}): Promise<wire.Process[]> {
    return (await this.api.listProcesses(this.id, { at, all })).items;
  }

  /** Lists network connections in the order of their start. */
  connections(): AsyncGenerator<wire.Flow, void, undefined> {
    return pages((after) => this.api.listNetworkFlows(this.id, { after }));
  }

  /**
   * Returns the changes of its root filesystem or workspace, or the differences from a
   * snapshot or another jail, by path.
   */
  changes({ unified, ...q }: { workspace?: boolean; against?: string; path?: string; unified?: boolean } = {}): AsyncGenerator<wire.Change, void, undefined> {
    return pages((after) => this.api.diffFiles(this.id, { ...q, after, content: unified ? "unified" : undefined }));
  }

  /** Returns the changes that lead from this jail to another jail or a snapshot. */
  diff(against: string | Jail | Snapshot, o: DiffOptions = {}): Promise<wire.Comparison> {
    return this.api.compareJail(this.id, diffQuery(against, o));
  }

  // Snapshots and branches.

  /** Takes a snapshot of memory and files. The jail continues to run. */
  async snapshot(how: wire.TakeSnapshot = {}): Promise<Snapshot> {
    return new Snapshot(this.api, await this.api.takeSnapshot(this.id, how, { idempotencyKey: newKey() }));
  }

  /** Lists its snapshots, oldest first. */
  async *snapshots(): AsyncGenerator<Snapshot, void, undefined> {
    for await (const s of pages((after) => this.api.listJailSnapshots(this.id, { after }))) yield new Snapshot(this.api, s);
  }

  /**
   * Branches (forks) count jails from the current state. This jail continues to run.
   * `await using` removes the branches and their snapshot at the end of the block. If some
   * cannot be created, it throws BranchFailed with those that were created.
   */
  async branch(count = 1, how: Omit<wire.Branch, "count"> = {}): Promise<Branches> {
    return branchesOf(this.api, await this.api.branchJail(this.id, { count, ...how }, { idempotencyKey: newKey() }));
  }

  /** Rewinds to a snapshot. Later events stay in the event log. */
  async rewind(snapshot: string | Snapshot): Promise<void> {
    this.info = await this.api.rewindJail(this.id, { snapshot: idOf(snapshot) }, { idempotencyKey: newKey() });
  }

  // Policy.

  /** Returns the policy, its interpretation, and lint findings. */
  policy(): Promise<wire.PolicyState> {
    return this.api.getPolicy(this.id);
  }

  /** Replaces the policy. It takes effect immediately. */
  setPolicy(policy: wire.Policy): Promise<wire.PolicyState> {
    return this.api.putPolicy(this.id, policy);
  }

  /** Changes the autonomy level: lowers it, or raises it up to its ceiling. It takes effect immediately. */
  setLevel(level: number): Promise<wire.PolicyState> {
    return this.api.setPolicyLevel(this.id, { level });
  }

  /**
   * Evaluates the policy for an action, and waits up to wait milliseconds if it requires
   * approval.
   */
  decide(action: string, resource?: string, { wait, ...more }: { wait?: number; agent?: string; attributes?: Record<string, string> } = {}): Promise<wire.Verdict> {
    const body: wire.Decide = { action, ...more };
    if (resource !== undefined) body.resource = resource;
    if (wait) body.wait_ms = wait;
    return this.api.requestDecision(this.id, body);
  }

  /** Lists its policy decisions, oldest first. */
  trail(): AsyncGenerator<wire.TrailEntry, void, undefined> {
    return pages((after) => this.api.listDecisions(this.id, { after: number(after) }));
  }

  /** Returns the egress rules and counters. */
  egress(): Promise<wire.EgressState> {
    return this.api.getEgress(this.id);
  }

  /** Changes the egress rules. They take effect immediately. */
  setEgress(rules: wire.Egress): Promise<wire.EgressState> {
    return this.api.putEgress(this.id, rules);
  }
}

/** A snapshot of a jail. */
export class Snapshot {
  constructor(
    readonly api: Operations,
    public info: wire.Snapshot,
  ) {}

  get id(): string {
    return this.info.id;
  }

  async refresh(): Promise<wire.Snapshot> {
    return (this.info = await this.api.getSnapshot(this.id));
  }

  /** Restores a jail from the snapshot. */
  async restore(how: wire.Overrides = {}): Promise<Jail> {
    return new Jail(this.api, await this.api.restoreSnapshot(this.id, how, { idempotencyKey: newKey() }));
  }

  /** Branches (forks) count jails. If some cannot be created, it throws BranchFailed with those that were created. */
  async branch(count = 1, how: Omit<wire.Branch, "count"> = {}): Promise<Branches> {
    return branchesOf(this.api, await this.api.branchSnapshot(this.id, { count, ...how }, { idempotencyKey: newKey() }));
  }

  /** Prepares count frozen copies, so that later branches start faster. */
  warm(count: number): Promise<wire.Warmed> {
    return this.api.warmSnapshot(this.id, { count });
  }

  /** Returns the differences from its jail, or from another jail or snapshot. */
  diff(against?: string | Jail | Snapshot, o: DiffOptions = {}): Promise<wire.Comparison> {
    return this.api.compareSnapshot(this.id, diffQuery(against, o));
  }

  /** Deletes the snapshot. Data that jails and other snapshots need is kept. */
  delete(): Promise<void> {
    return this.api.deleteSnapshot(this.id);
  }
}

/** Branches of one snapshot. */
export class Branches extends Array<Jail> {
  /** The snapshot, if it was taken for these branches. */
  snapshot: Snapshot | undefined;

  static override get [Symbol.species](): ArrayConstructor {
    return Array; // map and similar methods return plain arrays
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const jail of this) await gone(jail.delete());
    if (this.snapshot) await gone(this.snapshot.delete());
  }
}

function branchesOf(api: Operations, made: wire.Branches): Branches {
  const jails = new Branches();
  for (const j of made.jails) jails.push(new Jail(api, j));
  if (made.snapshot) jails.snapshot = new Snapshot(api, made.snapshot);
  const failed = made.errors?.[0];
  if (failed) {
    const cause = ofProblem(failed.problem);
    const all = made.errors!.length + jails.length;
    throw new BranchFailed(`${made.errors!.length} of ${all} branches could not be created: ${cause.detail}`, jails, { remedy: cause.remedy, cause });
  }
  return jails;
}

/** Returns the items of a paged list. */
export async function* pages<T>(page: (after: string | undefined) => Promise<{ items: T[]; next?: string }>): AsyncGenerator<T, void, undefined> {
  let after: string | undefined;
  do {
    const { items, next } = await page(after);
    yield* items;
    after = next;
  } while (after);
}

export const number = (after: string | undefined) => (after === undefined ? undefined : Number(after));

const idOf = (thing: string | Jail | Snapshot) => (typeof thing === "string" ? thing : thing.id);

function diffQuery(against: string | Jail | Snapshot | undefined, { only, unified }: DiffOptions) {
  const content = unified ? ("unified" as const) : undefined;
  return { against: against === undefined ? undefined : idOf(against), only: only?.join(","), content };
}

/** Waits for a removal. An object that no longer exists is not an error. */
async function gone(removal: Promise<void>): Promise<void> {
  try {
    await removal;
  } catch (err) {
    if (!(err instanceof NotFound)) throw err;
  }
}

/** Some branches could not be created. */
export class BranchFailed extends GlasshouseError {
  constructor(
    detail: string,
    /** The branches that were created. */
    readonly jails: Jail[],
    more: ErrorDetails,
  ) {
    super(detail, more);
  }
}
