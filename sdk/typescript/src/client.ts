import { CallFailed } from "./errors.js";
import { Jail, number, pages, Snapshot } from "./jail.js";
import { Operations } from "./operations.js";
import { Run, Schedule, Session, startRun } from "./runs.js";
import type { ServerEvent } from "./sse.js";
import { Stream } from "./stream.js";
import { newKey, type Options } from "./transport.js";
import type * as wire from "./wire.js";

/**
 * A Glasshouse daemon.
 *
 *     await using gh = new Glasshouse();
 *     await using jail = await gh.jail({ name: "box" });
 *     console.log((await jail.run("uname -a")).stdout);
 */
export class Glasshouse {
  /** Has a method for each operation of the daemon, including those without a method of this class. */
  readonly api: Operations;

  constructor(o: Options = {}) {
    this.api = new Operations(o);
  }

  /** Closes idle connections. */
  close(): void {
    this.api.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  version(): Promise<wire.Version> {
    return this.api.getVersion();
  }

  /** Returns the identity and role of the caller. */
  me(): Promise<wire.Me> {
    return this.api.getCaller();
  }

  /** Returns the features of the host, with remedies for missing ones. */
  async doctor(): Promise<wire.Probe[]> {
    return (await this.api.diagnoseHost()).items;
  }

  // Jails.

  /** Creates a jail and starts it, unless start is false. `await using` removes it at the end of the block. */
  async jail(spec: wire.CreateJail = {}): Promise<Jail> {
    return new Jail(this.api, await this.api.createJail({ start: true, ...spec }, { idempotencyKey: newKey() }));
  }

  /** Returns an existing jail by its id. */
  async findJail(id: string): Promise<Jail> {
    return new Jail(this.api, await this.api.getJail(id));
  }

  /** Lists jails, oldest first. */
  async *jails({ labels, ...q }: { name?: string; state?: wire.Jail["state"]; labels?: Record<string, string> } = {}): AsyncGenerator<Jail, void, undefined> {
    const label = labels && Object.entries(labels).map(([k, v]) => `${k}=${v}`);
    for await (const j of pages((after) => this.api.listJails({ ...q, label, after }))) yield new Jail(this.api, j);
  }

  async findSnapshot(id: string): Promise<Snapshot> {
    return new Snapshot(this.api, await this.api.getSnapshot(id));
  }

  /** Lists snapshots, oldest first. */
  async *snapshots(): AsyncGenerator<Snapshot, void, undefined> {
    for await (const s of pages((after) => this.api.listSnapshots({ after }))) yield new Snapshot(this.api, s);
  }

  /** Returns the lineage of jails and snapshots as trees. */
  async lineage(jail?: string): Promise<wire.LineageJail[]> {
    return (await this.api.getLineage({ jail })).items;
  }

  // Approvals.

  /** Lists pending approval requests, oldest first, or those in another state. */
  async approvals(q: { jail?: string; state?: "pending" | "answered" | "expired" | "withdrawn" | "all" } = {}): Promise<wire.Approval[]> {
    return (await this.api.listApprovals(q)).items;
  }

  /** Returns an approval request, after waiting up to wait milliseconds for a decision. */
  approval(id: string, { wait }: { wait?: number } = {}): Promise<wire.Approval> {
    return this.api.getApproval(id, { wait_ms: wait });
  }

  /** Approves a request: once, or for the given scope. The first decision is final. */
  approve(id: string, how: Omit<wire.AnswerApproval, "answer"> = {}): Promise<wire.Approval> {
    return this.api.answerApproval(id, { answer: "allow", ...how });
  }

  deny(id: string, reason = ""): Promise<wire.Approval> {
    return this.api.answerApproval(id, { answer: "deny", reason });
  }

  /**
   * Streams changes of approval requests, starting with the pending ones. After a reconnect
   * the pending requests are sent again.
   */
  approvalEvents(): Stream<wire.ApprovalEvent> {
    return new Stream<wire.ApprovalEvent>({
      connect: ({ signal }) => this.api.streamApprovals({ signal }),
      take: (event) => ({ item: event.data as wire.ApprovalEvent }),
    });
  }

  // Capabilities.

  /** Lists all versions of capabilities, by id, newest first. */
  async capabilities(): Promise<wire.Capability[]> {
    return (await this.api.listCapabilities()).items;
  }

  /** Returns a version of a capability with its manifest and schemas; by default the newest. */
  capability(id: string, version?: string): Promise<wire.Capability> {
    return this.api.getCapability(id, { version });
  }

  /**
   * Registers the capabilities of a manifest. New permissions require approval by a person.
   */
  async register(manifest: string, how: Omit<wire.Register, "manifest"> = {}): Promise<wire.Capability[]> {
    return (await this.api.registerCapabilities({ manifest, ...how })).items;
  }

  /**
   * Calls a capability and resolves to its output. If the capability fails, it throws
   * CallFailed; if the call is denied, it throws one of the other errors.
   */
  async call(capability: string, input: unknown = {}, how: Omit<wire.Call, "input"> = {}): Promise<unknown> {
    const called = await this.called(capability, input, how);
    if (called.state === "done") return called.output;
    throw new CallFailed(`${capability}: ${called.error?.message ?? called.state}`, called, called.error?.remedy);
  }

  /** Calls a capability and resolves to the complete result: output, usage, label, entry. */
  called(capability: string, input: unknown = {}, how: Omit<wire.Call, "input"> = {}): Promise<wire.Called> {
    return this.api.callCapability(capability, { input, ...how }, { idempotencyKey: newKey() });
  }

  // Sessions and runs.

  /** Opens a session, or returns the existing one with this name. */
  async session(how: wire.OpenSession = {}): Promise<Session> {
    return new Session(this.api, await this.api.createSession(how, { idempotencyKey: newKey() }));
  }

  async findSession(id: string): Promise<Session> {
    return new Session(this.api, await this.api.getSession(id));
  }

  /** Lists sessions, newest first. */
  async *sessions(q: { state?: "open" | "closed" } = {}): AsyncGenerator<Session, void, undefined> {
    for await (const s of pages((after) => this.api.listSessions({ ...q, after }))) yield new Session(this.api, s);
  }

  /** Starts an agent run for a goal: now, at a time, or by a schedule. */
  run(goal: string, how: Omit<wire.StartRun, "goal"> = {}): Promise<Run> {
    return startRun(this.api, { ...how, goal });
  }

  async findRun(id: string): Promise<Run> {
    return new Run(this.api, await this.api.getRun(id));
  }

  /** Lists runs, newest first. */
  async *runs({ session, state }: { session?: string; state?: NonNullable<wire.Run["state"]> } = {}): AsyncGenerator<Run, void, undefined> {
    for await (const r of pages((after) => this.api.listRuns({ session_id: session, state, after }))) yield new Run(this.api, r);
  }

  async findSchedule(id: string): Promise<Schedule> {
    return new Schedule(this.api, await this.api.getSchedule(id));
  }

  /** Lists schedules, oldest first. */
  async *schedules(): AsyncGenerator<Schedule, void, undefined> {
    for await (const s of pages((after) => this.api.listSchedules({ after }))) yield new Schedule(this.api, s);
  }

  // Audit log.

  /** Lists entries of the audit log, oldest first. */
  chain({ after: from, ...q }: { jail?: string; session?: string; run?: string; kind?: string; after?: number } = {}): AsyncGenerator<wire.ChainEntry, void, undefined> {
    return pages((after) => this.api.listChainEntries({ ...q, after: number(after) ?? from }));
  }

  chainHead(): Promise<wire.ChainHead> {
    return this.api.getChainHead();
  }

  /** Verifies the audit log: the entries since the last verification, or all. */
  verifyChain({ all }: { all?: boolean } = {}): Promise<wire.ChainReport> {
    return this.api.verifyChain({ all });
  }

  /** Exports the audit log with its checkpoints and public key, line by line. */
  exportChain(): Promise<AsyncIterable<wire.ChainEntry>> {
    return this.api.exportChain();
  }

  /**
   * Streams events and resource usage of jails for comma-separated topics. The name of an
   * event is its topic.
   */
  feed(topics?: string): Stream<ServerEvent> {
    return new Stream<ServerEvent>({
      connect: ({ lastEventId, signal }) => this.api.streamFeed({ topics }, lastEventId === undefined ? { signal } : { signal, lastEventId }),
      take: (event) => ({ item: event }),
    });
  }
}
