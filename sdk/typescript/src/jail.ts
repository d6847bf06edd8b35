import { Command } from "./command.js";
import { BranchFailed, Disconnected, NotFound, ofProblem } from "./errors.js";
import { Files } from "./files.js";
import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
import { type CommandLine, execRequest, type Result, resultOf, type RunOptions } from "./values.js";
import type * as wire from "./wire.js";

export interface EventQuery {
  /** Not before: a time (RFC 3339) or how long ago, such as 5m. */
  since?: string;
  /** Not after. */
  until?: string;
  /** Only records with a later seq. */
  after?: number;
  /** Of the records there are, only the last so many. */
  tail?: number;
  /** At most so many. */
  limit?: number;
  /** Go on with what happens from now on, which is the default. */
  follow?: boolean;
}

/** What is told of a comparison. */
export interface DiffOptions {
  /** All if not given. */
  only?: ("files" | "workspace" | "processes" | "events" | "usage")[];
  /** With the differences of text files, as diff -u writes them. */
  unified?: boolean;
}

/** A jail. With `await using` it is removed at the end. */
export class Jail {
  readonly files: Files;

  constructor(
    readonly api: Operations,
    /** What was last heard of it; refresh asks anew. */
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

  /** As it was when last heard of. */
  get state(): wire.Jail["state"] {
    return this.info.state;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await gone(this.delete());
  }

  /** Asks how it is now, and what it uses. */
  async refresh(): Promise<wire.Jail> {
    return (this.info = await this.api.getJailsById(this.id));
  }

  async start(): Promise<void> {
    this.info = await this.api.postJailsByIdStart(this.id);
  }

  /** Ends every process. With grace, in milliseconds, they are asked first. Files stay. */
  async stop({ grace }: { grace?: number } = {}): Promise<void> {
    this.info = await this.api.postJailsByIdStop(this.id, grace === undefined ? undefined : { grace_ms: grace });
  }

  /** Freezes it, as it is. */
  async pause(): Promise<void> {
    this.info = await this.api.postJailsByIdPause(this.id);
  }

  async resume(): Promise<void> {
    this.info = await this.api.postJailsByIdResume(this.id);
  }

  /** Removes it and its files, and with snapshots also those that were taken of it. */
  delete({ snapshots }: { snapshots?: boolean } = {}): Promise<void> {
    return this.api.deleteJailsById(this.id, { snapshots });
  }

  /** Changes what it may use, while it runs. What is not named stays as it is. */
  async setLimits(limits: wire.Limits): Promise<void> {
    this.info = await this.api.patchJailsByIdLimits(this.id, limits);
  }

  // Commands.

  /** Runs a command and waits for it. With check a code other than 0 throws CommandFailed. */
  async run(command: CommandLine, { check = false, ...how }: RunOptions & { check?: boolean } = {}): Promise<Result> {
    const result = resultOf(await this.api.postJailsByIdExec(this.id, execRequest(command, how)));
    return check ? result.check() : result;
  }

  /**
   * Runs a command, to go through what it writes as it comes. stdinOpen lets one write to
   * it; with lossless a slow reader slows it down, rather than lose output.
   */
  async stream(command: CommandLine, { stdinOpen, lossless, ...how }: RunOptions & { stdinOpen?: boolean; lossless?: boolean } = {}): Promise<Command> {
    const request: wire.ExecRequest = { ...execRequest(command, how), stream: true };
    if (stdinOpen) request.stdin_open = true;
    if (lossless) request.lossless = true;
    const abort = new AbortController();
    const events = (await this.api.postJailsByIdExecStream(this.id, request, { signal: abort.signal }))[Symbol.asyncIterator]();
    const { value: start, done } = await events.next();
    if (done) throw new Disconnected("the daemon hung up before it said which command it started");
    if (start.name === "error") throw ofProblem(start.data as wire.Problem);
    return new Command(this.api, this.id, start.data as wire.Exec, { events: { [Symbol.asyncIterator]: () => events }, abort });
  }

  /** Starts a command and leaves it to itself. What it writes is kept in the jail. */
  async spawn(command: CommandLine, { stdinOpen, ...how }: RunOptions & { stdinOpen?: boolean } = {}): Promise<Command> {
    const request: wire.ExecRequest = { ...execRequest(command, how), detach: true };
    if (stdinOpen) request.stdin_open = true;
    return new Command(this.api, this.id, await this.api.postJailsByIdExec(this.id, request, { idempotencyKey: newKey() }));
  }

  /** A command that was started before. */
  async command(id: string): Promise<Command> {
    return new Command(this.api, this.id, await this.api.getJailsByIdExecsByExec(this.id, id));
  }

  /** The commands that are still known, oldest first. */
  commands(): AsyncGenerator<wire.Exec, void, undefined> {
    return pages((after) => this.api.getJailsByIdExecs(this.id, { after }));
  }

  // What it does.

  /**
   * What it does, oldest first: what there is, and unless told otherwise what comes. The
   * filter is of terms joined by spaces, such as "type:file path:/etc ret:<0". The stream
   * ends with the jail, and goes on where it was when the daemon has been away.
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
        return this.api.getJailsByIdEventsStream(this.id, query, back ? { signal, lastEventId } : { signal });
      },
      take: (event) => ({ item: event.data as wire.Event }),
    });
  }

  /** Its processes, each after its parent: now, or at a time, so long ago, or at a seq. */
  async processes({ at, all }: { at?: string; all?: boolean } = {}): Promise<wire.Process[]> {
    return (await this.api.getJailsByIdProcesses(this.id, { at, all })).items;
  }

  /** Whom it talked to, in the order it began. */
  connections(): AsyncGenerator<wire.Flow, void, undefined> {
    return pages((after) => this.api.getJailsByIdNetworkLog(this.id, { after }));
  }

  /**
   * What it changed in its root filesystem or its workspace, or how it differs from a
   * snapshot or another jail, by path.
   */
  changes({ unified, ...q }: { workspace?: boolean; against?: string; path?: string; unified?: boolean } = {}): AsyncGenerator<wire.Change, void, undefined> {
    return pages((after) => this.api.getJailsByIdFsDiff(this.id, { ...q, after, content: unified ? "unified" : undefined }));
  }

  /** What would have to change to come from this jail to that jail or snapshot. */
  diff(against: string | Jail | Snapshot, o: DiffOptions = {}): Promise<wire.Comparison> {
    return this.api.getJailsByIdDiff(this.id, diffQuery(against, o));
  }

  // As it was, and in many directions.

  /** Keeps it as it is, memory and files. It goes on. */
  async snapshot(how: wire.TakeSnapshot = {}): Promise<Snapshot> {
    return new Snapshot(this.api, await this.api.postJailsByIdSnapshot(this.id, how, { idempotencyKey: newKey() }));
  }

  /** Its snapshots, oldest first. */
  async *snapshots(): AsyncGenerator<Snapshot, void, undefined> {
    for await (const s of pages((after) => this.api.getJailsByIdSnapshots(this.id, { after }))) yield new Snapshot(this.api, s);
  }

  /**
   * Makes so many jails that each go on from where this one is; it goes on too. With
   * `await using` they and their snapshot are removed at the end. If not all can be made,
   * BranchFailed has those that were.
   */
  async branch(count = 1, how: Omit<wire.Branch, "count"> = {}): Promise<Branches> {
    return branchesOf(this.api, await this.api.postJailsByIdBranch(this.id, { count, ...how }, { idempotencyKey: newKey() }));
  }

  /** Takes it back to a snapshot. What it did since stays in its log. */
  async rewind(snapshot: string | Snapshot): Promise<void> {
    this.info = await this.api.postJailsByIdRewind(this.id, { snapshot: idOf(snapshot) }, { idempotencyKey: newKey() });
  }

  // What it may do.

  /** Its policy, how it is read, and what in it does not do what it seems to. */
  policy(): Promise<wire.PolicyState> {
    return this.api.getJailsByIdPolicy(this.id);
  }

  /** Gives it another policy, at once. */
  setPolicy(policy: wire.Policy): Promise<wire.PolicyState> {
    return this.api.putJailsByIdPolicy(this.id, policy);
  }

  /** Changes its level of autonomy, at once: down, or up to its ceiling. */
  setLevel(level: number): Promise<wire.PolicyState> {
    return this.api.postJailsByIdPolicyLevel(this.id, { level });
  }

  /**
   * Asks whether something may be done, and waits so many milliseconds for a person, if
   * one is to be asked.
   */
  decide(action: string, resource?: string, { wait, ...more }: { wait?: number; agent?: string; attributes?: Record<string, string> } = {}): Promise<wire.Verdict> {
    const body: wire.Decide = { action, ...more };
    if (resource !== undefined) body.resource = resource;
    if (wait) body.wait_ms = wait;
    return this.api.postJailsByIdDecide(this.id, body);
  }

  /** What was decided about it, oldest first. */
  trail(): AsyncGenerator<wire.TrailEntry, void, undefined> {
    return pages((after) => this.api.getSandboxByIdDecisions(this.id, { after: number(after) }));
  }

  /** What may leave it, and what did, in numbers. */
  egress(): Promise<wire.EgressState> {
    return this.api.getJailsByIdEgress(this.id);
  }

  /** Changes what may leave it, at once. */
  setEgress(rules: wire.Egress): Promise<wire.EgressState> {
    return this.api.putJailsByIdEgress(this.id, rules);
  }
}

/** A jail as it was at one moment. */
export class Snapshot {
  constructor(
    readonly api: Operations,
    public info: wire.Snapshot,
  ) {}

  get id(): string {
    return this.info.id;
  }

  async refresh(): Promise<wire.Snapshot> {
    return (this.info = await this.api.getSnapshotsBySid(this.id));
  }

  /** Makes a jail from it, as it was. */
  async restore(how: wire.Overrides = {}): Promise<Jail> {
    return new Jail(this.api, await this.api.postSnapshotsBySidRestore(this.id, how, { idempotencyKey: newKey() }));
  }

  /** Makes so many jails from it. If not all can be made, BranchFailed has those that were. */
  async branch(count = 1, how: Omit<wire.Branch, "count"> = {}): Promise<Branches> {
    return branchesOf(this.api, await this.api.postSnapshotsBySidBranch(this.id, { count, ...how }, { idempotencyKey: newKey() }));
  }

  /** Makes so many frozen copies of it ahead of need. */
  warm(count: number): Promise<wire.Warmed> {
    return this.api.postSnapshotsBySidWarm(this.id, { count });
  }

  /** What differs between it and the jail it was taken of, or another jail or snapshot. */
  diff(against?: string | Jail | Snapshot, o: DiffOptions = {}): Promise<wire.Comparison> {
    return this.api.getSnapshotsBySidDiff(this.id, diffQuery(against, o));
  }

  /** Removes it. What jails and other snapshots stand on stays. */
  delete(): Promise<void> {
    return this.api.deleteSnapshotsBySid(this.id);
  }
}

/** Jails that go on from one snapshot. */
export class Branches extends Array<Jail> {
  /** The one that was taken for them, if it was. */
  snapshot: Snapshot | undefined;

  static override get [Symbol.species](): ArrayConstructor {
    return Array; // what is made of them by map is no jails
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
    throw new BranchFailed(`${made.errors!.length} of ${all} branches were not made: ${cause.detail}`, jails, { remedy: cause.remedy, cause });
  }
  return jails;
}

/** The items of a list, page by page. */
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

/** Waits for a removal, of what may be gone already. */
async function gone(removal: Promise<void>): Promise<void> {
  try {
    await removal;
  } catch (err) {
    if (!(err instanceof NotFound)) throw err;
  }
}
