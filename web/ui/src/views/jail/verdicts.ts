// The denials and approval requests of a jail, from the audit log.
import { get } from "../../api/client";
import { wrong } from "../chain/entry";

export interface Verdict {
  at: number;
  kind: "denied" | "approval";
}

const page = 1000; // the maximum of the API
const most = 1000; // the verdicts that are kept, the latest ones

export class Verdicts {
  list: readonly Verdict[] = []; // oldest first
  #last: number | undefined; // the latest entry that was read
  #reading: Promise<void> | undefined;

  constructor(readonly jail: string) {}

  // read reads the latest entries the first time, and later only newer ones. Calls do not overlap.
  read(): Promise<void> {
    this.#reading ??= this.#read().finally(() => (this.#reading = undefined));
    return this.#reading;
  }

  async #read(): Promise<void> {
    for (let more = true; more; ) {
      const first = this.#last === undefined;
      const found = await get("/chain", { query: { jail: this.jail, kind: "decision,egress,approval.asked,secret.refused", limit: page, newest: first || undefined, after: this.#last } });
      const items = first ? found.items.toReversed() : found.items;
      const fresh = items.filter((e) => e.kind === "approval.asked" || wrong(e)).map((e): Verdict => ({ at: Date.parse(e.time), kind: e.kind === "approval.asked" ? "approval" : "denied" }));
      if (fresh.length > 0) this.list = [...this.list, ...fresh].slice(-most);
      this.#last = items.at(-1)?.seq ?? this.#last ?? 0;
      more = !first && Boolean(found.next);
    }
  }
}
