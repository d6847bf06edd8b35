// A run with its step log, updated live. It contains the last few hundred steps with shortened
// inputs and outputs; the rest is loaded on demand.
import { get } from "../../api/client";
import { Problem } from "../../api/problem";
import { followSession, over, soon, type Checkpoint, type Run, type RunEvent, type Step } from "../../api/runs";
import type { Following } from "../../api/follow";
import { millis } from "../../lib/format";
import type { Entry } from "../chain/entry";

const most = 300; // steps per request of earlier steps
const page = 100;
const entriesMost = 4000;
const long = 2000; // the maximum length of an input or output, in characters

export class RunRecord {
  run = $state.raw<Run>();
  steps = $state.raw<Step[]>([]);
  checkpoints = $state.raw<Checkpoint[]>([]);
  below = $state.raw<Run[]>([]);
  siblings = $state.raw<Run[]>([]); // of the same session
  entries = $state.raw<Entry[]>([]);
  problem = $state.raw<Problem>();
  following = $state<Following>("connecting");
  from = $state(0); // the number of earlier steps that are not loaded

  #over = new AbortController();
  #end = () => {};
  #changed = Infinity; // the first step that changed since the last read
  #again = soon(150, () => void this.#renew());
  #busy = false;

  constructor(readonly id: string) {}

  async start(): Promise<void> {
    try {
      const run = await get("/chat/run/{run}", { path: { run: this.id }, signal: this.#over.signal });
      this.run = run;
      this.from = Math.max(0, run.steps - most);
      await this.#read(this.from);
      this.problem = undefined;
      this.#end();
      this.#end = followSession(run.session_id, (event) => this.#heard(event), (state) => (this.following = state));
    } catch (thrown) {
      if (!this.#over.signal.aborted) this.problem = Problem.from(thrown);
    }
  }

  stop(): void {
    this.#over.abort();
    this.#again.stop();
    this.#end();
  }

  // earlier loads earlier steps.
  async earlier(): Promise<void> {
    this.from = Math.max(0, this.from - most);
    this.steps = [];
    this.entries = [];
    await this.#read(this.from);
  }

  // whole loads a step with its complete input and output.
  async whole(n: number): Promise<Step | undefined> {
    return (await get("/chat/run/{run}/actions", { path: { run: this.id }, query: { after: n - 1, limit: 1 }, signal: this.#over.signal })).items[0];
  }

  renew(): void {
    this.#again.ask();
  }

  #heard(event: RunEvent): void {
    if (event.run !== this.id) {
      if (event.kind.startsWith("run.")) this.#again.ask();
      return;
    }
    const n = (event.body as { n?: number } | null)?.n;
    const known = n === undefined ? undefined : this.steps.find((s) => s.n === n);
    // The stream repeats events from the start. Ignore those about known steps.
    if (event.kind === "step.began" && (known || (n ?? 0) <= this.from)) return;
    if (event.kind === "step.ended" && (known?.ended || (n ?? 0) <= this.from)) return;
    if (event.kind.startsWith("step.")) this.#changed = Math.min(this.#changed, n ?? Infinity);
    else if (this.run && over(this.run) && millis(event.at) < millis(this.run.ended ?? event.at)) return;
    this.#again.ask();
  }

  async #renew(): Promise<void> {
    if (this.#busy) {
      this.#again.ask();
      return;
    }
    this.#busy = true;
    try {
      const first = Math.min(this.#changed, this.steps.find((s) => !s.ended)?.n ?? Infinity);
      this.#changed = Infinity;
      this.run = await get("/chat/run/{run}", { path: { run: this.id }, signal: this.#over.signal });
      await this.#read(Math.max(this.from, Math.min(first - 1, this.steps.at(-1)?.n ?? 0)));
      this.problem = undefined;
    } catch (thrown) {
      if (!this.#over.signal.aborted) this.problem = Problem.from(thrown);
    } finally {
      this.#busy = false;
    }
  }

  // read loads the steps after a step, and the checkpoints, child runs and audit log entries.
  async #read(after: number): Promise<void> {
    const run = this.run;
    if (!run) return;
    const signal = this.#over.signal;
    const fresh: Step[] = [];
    for (let at = after; ; ) {
      const got = await get("/chat/run/{run}/actions", { path: { run: run.id }, query: { after: at, limit: page }, signal });
      fresh.push(...got.items.map(short));
      at = got.items.at(-1)?.n ?? at;
      if (!got.next) break;
    }
    const kept = this.steps.filter((s) => s.n <= after);
    const steps = [...kept, ...fresh];
    this.from = Math.max(this.from, steps.length - 3 * most);
    this.steps = steps.filter((s) => s.n > this.from);

    const [checkpoints, below, session] = await Promise.all([
      this.#checkpoints(),
      get("/chat/run", { query: { parent: run.id, limit: page }, signal }),
      get("/chat/run", { query: { session_id: run.session_id, limit: 20 }, signal }),
    ]);
    this.checkpoints = checkpoints;
    this.below = below.items;
    this.siblings = session.items.filter((r) => r.id !== run.id);
    await this.#causes(run.id);
  }

  async #checkpoints(): Promise<Checkpoint[]> {
    const found: Checkpoint[] = [];
    for (let after = 0; ; ) {
      const got = await get("/chat/run/{run}/checkpoints", { path: { run: this.id }, query: { after, limit: page }, signal: this.#over.signal });
      found.push(...got.items);
      after = got.items.at(-1)?.n ?? after;
      if (!got.next) return found;
    }
  }

  // causes loads the audit log entries of the time range of the steps. If the audit log is
  // disabled, only the steps are shown.
  async #causes(run: string): Promise<void> {
    try {
      const first = this.from > 0 ? this.steps[0]?.began : undefined;
      const fresh: Entry[] = [];
      for (let after = this.entries.at(-1)?.seq ?? 0; fresh.length < entriesMost; ) {
        const got = await get("/chain", { query: { run, after, from: first, limit: 1000 }, signal: this.#over.signal });
        fresh.push(...got.items);
        after = got.items.at(-1)?.seq ?? after;
        if (!got.next) break;
      }
      if (fresh.length > 0) this.entries = [...this.entries, ...fresh].slice(-entriesMost);
    } catch (thrown) {
      if (Problem.from(thrown).status !== 501) throw thrown;
    }
  }
}

function short(step: Step): Step {
  return { ...step, input: cut(step.input), output: cut(step.output) };
}

function cut(value: unknown): unknown {
  if (value === undefined) return undefined;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > long ? `${text.slice(0, long)}…` : value;
}
