// The selected part of the event log of a jail: time range, filter and, for time travel, the
// moment. It is part of the URL, so that a link shows the same part.
import { router } from "../../lib/router.svelte";
import { namesProcess, term, withoutInit } from "../../lib/event";

class Scope {
  q = $derived(router.get("q"));
  init = $derived(router.get("init") === "yes"); // whether events of init are shown
  from = $derived(moment("from"));
  to = $derived(moment("to"));
  at = $derived(moment("at")); // undefined: the present

  // asked is the filter for the daemon. The log itself always contains events of init.
  asked = $derived(this.init ? this.q : withoutInit(this.q));
  namesProcess = $derived(namesProcess(this.q)); // then the setting for init has no effect

  showInit(init: boolean): void {
    router.set({ init: init ? "yes" : undefined });
  }

  filter(q: string): void {
    router.set({ q });
  }

  // narrow adds a term to the filter, unless it contains the term.
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
