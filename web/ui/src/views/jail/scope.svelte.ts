// What of a jail's record is looked at: between which moments, by which filter,
// and, in time travel, as of which moment. It is all in the address, so that
// what one sees can be sent to somebody else.
import { router } from "../../lib/router.svelte";
import { namesProcess, term, withoutInit } from "../../lib/event";

class Scope {
  q = $derived(router.get("q"));
  init = $derived(router.get("init") === "yes"); // whether records of init are shown
  from = $derived(moment("from"));
  to = $derived(moment("to"));
  at = $derived(moment("at")); // undefined: as it is now

  // asked is the filter that the daemon gets. The record itself always has init's part.
  asked = $derived(this.init ? this.q : withoutInit(this.q));
  namesProcess = $derived(namesProcess(this.q)); // then init is neither hidden nor shown

  showInit(init: boolean): void {
    router.set({ init: init ? "yes" : undefined });
  }

  filter(q: string): void {
    router.set({ q });
  }

  // narrow adds a term to the filter, once.
  narrow(key: string, value: string | number, not = false): void {
    const added = (not ? "-" : "") + term(key, value);
    const terms = this.q.trim();
    if (!` ${terms} `.includes(` ${added} `)) this.filter(terms ? `${terms} ${added}` : added);
  }

  zoom(from: number | undefined, to: number | undefined): void {
    router.set({ from: written(from), to: written(to) }, true);
  }

  travel(at: number | undefined): void {
    router.set({ at: written(at) });
  }
}

function moment(name: string): number | undefined {
  const ms = Number(router.get(name));
  return ms > 0 ? ms : undefined;
}

const written = (ms: number | undefined) => (ms === undefined ? undefined : String(Math.round(ms)));

export const scope = new Scope();
