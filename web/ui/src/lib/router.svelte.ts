// Which page is shown. The address bar is the truth: what one can link to is in
// it, and nothing else is kept about the page.
//
// Pages have the addresses that the API has for the same things: the daemon
// answers a browser that opens one with the page.
import type { Component } from "svelte";

export interface Route {
  pattern: string; // "/jails/:id"
  title: string;
  nav: string; // the entry of the rail that it belongs to
  view: () => Promise<{ default: Component<any> }>;
}

const settled = 150;

class Router {
  routes: Route[] = [];
  path = $state(location.pathname);
  query = $state.raw(new URLSearchParams(location.search));
  #late = 0; // the timer after which the address bar follows, if it is behind

  constructor() {
    window.addEventListener("popstate", () => {
      this.#stay();
      this.#read();
    });
    document.addEventListener("click", (event) => this.#follow(event));
  }

  #read(): void {
    this.path = location.pathname;
    this.query = new URLSearchParams(location.search);
  }

  go(address: string): void {
    this.#settle();
    if (address === location.pathname + location.search) return;
    history.pushState(null, "", address);
    this.#read();
    window.scrollTo(0, 0);
  }

  replace(address: string): void {
    this.#stay();
    history.replaceState(null, "", address);
    this.#read();
  }

  // set changes parameters of the address; an empty one is taken away. Moves
  // that one would not want to undo one by one leave no trace in the history.
  set(params: Record<string, string | undefined>, leaveTrace = false): void {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(params)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const address = query.size > 0 ? `${this.path}?${query}` : this.path;
    if (leaveTrace) {
      this.go(address);
      return;
    }
    // Who scrubs or types makes more moves than a browser lets its address make.
    this.query = query;
    this.#stay();
    this.#late = window.setTimeout(() => this.#settle(), settled);
  }

  // settle has the address bar say what is shown.
  #settle(): void {
    if (!this.#late) return;
    this.#stay();
    history.replaceState(null, "", this.query.size > 0 ? `${this.path}?${this.query}` : this.path);
  }

  #stay(): void {
    clearTimeout(this.#late);
    this.#late = 0;
  }

  get(name: string): string {
    return this.query.get(name) ?? "";
  }

  // A link to a page of ours does not load it anew. What belongs to the browser,
  // a new tab, a download, stays the browser's.
  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (!match(this.routes, link.pathname)) return; // a download, or a report
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

export const router = new Router();

// match finds the route of a path, and what stands in it.
export function match(routes: Route[], path: string): { route: Route; params: Record<string, string> } | undefined {
  const parts = path.replace(/(.)\/$/, "$1").split("/");
  for (const route of routes) {
    const wanted = route.pattern.split("/");
    if (wanted.length !== parts.length) continue;
    const params: Record<string, string> = {};
    const fits = wanted.every((word, i) => {
      const part = parts[i] ?? "";
      if (!word.startsWith(":")) return word === part;
      try {
        params[word.slice(1)] = decodeURIComponent(part);
      } catch {
        return false; // no address of ours
      }
      return part !== "";
    });
    if (fits) return { route, params };
  }
  return undefined;
}
