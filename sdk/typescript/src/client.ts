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
  /** Has a method for each operation of the daemon, also for those that nothing more comfortable is for. */
  readonly api: Operations;

  constructor(o: Options = {}) {
    this.api = new Operations(o);
  }

  /** Closes the connections that are kept. */
  close(): void {
    this.api.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  version(): Promise<wire.Version> {
    return this.api.getVersion();
  }

  /** Who the daemon takes the caller for. */
  me(): Promise<wire.Me> {
    return this.api.getMe();
  }

  /** What this host can do, and what to do about what it cannot. */
  async doctor(): Promise<wire.Probe[]> {
    return (await this.api.getDoctor()).items;
  }

  // Jails.

  /** Makes a jail and starts it, unless start is false. With `await using` it is removed at the end. */
  async jail(spec: wire.CreateJail = {}): Promise<Jail> {
    return new Jail(this.api, await this.api.postJails({ start: true, ...spec }, { idempotencyKey: newKey() }));
  }

  /** A jail that is there, by its id. */
  async findJail(id: string): Promise<Jail> {
    return new Jail(this.api, await this.api.getJailsById(id));
  }

  /** Jails, oldest first. */
  async *jails({ labels, ...q }: { name?: string; state?: wire.Jail["state"]; labels?: Record<string, string> } = {}): AsyncGenerator<Jail, void, undefined> {
    const label = labels && Object.entries(labels).map(([k, v]) => `${k}=${v}`);
    for await (const j of pages((after) => this.api.getJails({ ...q, label, after }))) yield new Jail(this.api, j);
  }

  async findSnapshot(id: string): Promise<Snapshot> {
    return new Snapshot(this.api, await this.api.getSnapshotsBySid(id));
  }

  /** Snapshots, oldest first. */
  async *snapshots(): AsyncGenerator<Snapshot, void, undefined> {
    for await (const s of pages((after) => this.api.getSnapshots({ after }))) yield new Snapshot(this.api, s);
  }

  /** Which jails and snapshots come from which, as trees. */
  async lineage(jail?: string): Promise<wire.LineageJail[]> {
    return (await this.api.getLineage({ jail })).items;
  }

  // What people are asked.

  /** What waits for a person, oldest first, or what is in another state. */
  async approvals(q: { jail?: string; state?: "pending" | "answered" | "expired" | "withdrawn" | "all" } = {}): Promise<wire.Approval[]> {
    return (await this.api.getApprovals(q)).items;
  }

  /** A request, after at most so many milliseconds if it is not settled before. */
  approval(id: string, { wait }: { wait?: number } = {}): Promise<wire.Approval> {
    return this.api.getApprovalsByApproval(id, { wait_ms: wait });
  }

  /** Allows what is asked: once, or as scope says. The first answer counts. */
  approve(id: string, how: Omit<wire.AnswerApproval, "answer"> = {}): Promise<wire.Approval> {
    return this.api.postApprovalsByApproval(id, { answer: "allow", ...how });
  }

  deny(id: string, reason = ""): Promise<wire.Approval> {
    return this.api.postApprovalsByApproval(id, { answer: "deny", reason });
  }

  /**
   * What happens to requests, those that wait first. When the connection has broken, those
   * that wait are told once more.
   */
  approvalEvents(): Stream<wire.ApprovalEvent> {
    return new Stream<wire.ApprovalEvent>({
      connect: ({ signal }) => this.api.getApprovalsEvents({ signal }),
      take: (event) => ({ item: event.data as wire.ApprovalEvent }),
    });
  }

  // Capabilities.

  /** The versions of all capabilities, by id, the newest first. */
  async capabilities(): Promise<wire.Capability[]> {
    return (await this.api.getCapabilities()).items;
  }

  /** A version, with its manifest and its schemas; without one the newest. */
  capability(id: string, version?: string): Promise<wire.Capability> {
    return this.api.getCapabilitiesByCapability(id, { version });
  }

  /**
   * Registers the capabilities of a manifest's text. A person is asked about what they may
   * do that is new.
   */
  async register(manifest: string, how: Omit<wire.Register, "manifest"> = {}): Promise<wire.Capability[]> {
    return (await this.api.postCapabilities({ manifest, ...how })).items;
  }

  /**
   * Calls a capability and resolves to its output. CallFailed says that it failed; that it
   * was refused is one of the other errors.
   */
  async call(capability: string, input: unknown = {}, how: Omit<wire.Call, "input"> = {}): Promise<unknown> {
    const called = await this.called(capability, input, how);
    if (called.state === "done") return called.output;
    throw new CallFailed(`${capability}: ${called.error?.message ?? called.state}`, called, called.error?.remedy);
  }

  /** Calls a capability and resolves to all that became of it: output, usage, label, entry. */
  called(capability: string, input: unknown = {}, how: Omit<wire.Call, "input"> = {}): Promise<wire.Called> {
    return this.api.postCapabilitiesByCapabilityCall(capability, { input, ...how }, { idempotencyKey: newKey() });
  }

  // Agents at work.

  /** Opens a session, or finds the one of that name. */
  async session(how: wire.OpenSession = {}): Promise<Session> {
    return new Session(this.api, await this.api.postChatSession(how, { idempotencyKey: newKey() }));
  }

  async findSession(id: string): Promise<Session> {
    return new Session(this.api, await this.api.getChatSessionBySession(id));
  }

  /** Sessions, newest first. */
  async *sessions(q: { state?: "open" | "closed" } = {}): AsyncGenerator<Session, void, undefined> {
    for await (const s of pages((after) => this.api.getChatSession({ ...q, after }))) yield new Session(this.api, s);
  }

  /** Has an agent pursue a goal: now, at a time, or by a schedule. */
  run(goal: string, how: Omit<wire.StartRun, "goal"> = {}): Promise<Run> {
    return startRun(this.api, { ...how, goal });
  }

  async findRun(id: string): Promise<Run> {
    return new Run(this.api, await this.api.getChatRunByRun(id));
  }

  /** Runs, newest first. */
  async *runs({ session, state }: { session?: string; state?: NonNullable<wire.Run["state"]> } = {}): AsyncGenerator<Run, void, undefined> {
    for await (const r of pages((after) => this.api.getChatRun({ session_id: session, state, after }))) yield new Run(this.api, r);
  }

  async findSchedule(id: string): Promise<Schedule> {
    return new Schedule(this.api, await this.api.getSchedulesBySchedule(id));
  }

  /** Schedules, oldest first. */
  async *schedules(): AsyncGenerator<Schedule, void, undefined> {
    for await (const s of pages((after) => this.api.getSchedules({ after }))) yield new Schedule(this.api, s);
  }

  // What can be proved.

  /** Entries of the causal chain, oldest first. */
  chain({ after: from, ...q }: { jail?: string; session?: string; run?: string; kind?: string; after?: number } = {}): AsyncGenerator<wire.ChainEntry, void, undefined> {
    return pages((after) => this.api.getChain({ ...q, after: number(after) ?? from }));
  }

  chainHead(): Promise<wire.ChainHead> {
    return this.api.getChainHead();
  }

  /** Verifies the chain: since it was last verified, or all of it. */
  verifyChain({ all }: { all?: boolean } = {}): Promise<wire.ChainReport> {
    return this.api.getChainVerify({ all });
  }

  /** The chain with its checkpoints and its key, line by line. */
  exportChain(): Promise<AsyncIterable<wire.ChainEntry>> {
    return this.api.getChainExport();
  }

  /**
   * What happens, and how jails fare, on the topics that are named, joined by commas. An
   * event's name is its topic.
   */
  feed(topics?: string): Stream<ServerEvent> {
    return new Stream<ServerEvent>({
      connect: ({ lastEventId, signal }) => this.api.getFeed({ topics }, lastEventId === undefined ? { signal } : { signal, lastEventId }),
      take: (event) => ({ item: event }),
    });
  }
}
