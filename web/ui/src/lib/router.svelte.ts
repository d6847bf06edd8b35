// The router. The URL contains the whole state of the page that can be linked to.
//
// Pages have the same paths as the API resources they show: the daemon returns the page
// to browsers.
import type { Component } from "svelte";

export interface Route {
  pattern: string; // "/jails/:id"
  title: string;
  nav: string; // the navigation entry of the page
  view: () => Promise<{ default: Component<any> }>;
}

const settled = 150;

class Router {
  routes: Route[] = [];
  path = $state(location.pathname);
  query = $state.raw(new URLSearchParams(location.search));
  #late = 0; // timer of a pending update of the address bar

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

  // set changes query parameters; an empty value removes the parameter. Without leaveTrace
  // it adds no history entry, for changes that users do not want to undo one by one.
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
    // Browsers limit the rate of history updates, which scrubbing and typing would exceed.
    this.query = query;
    this.#stay();
    this.#late = window.setTimeout(() => this.#settle(), settled);
  }

  // settle updates the address bar to the current state.
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

  // follow opens links to pages of the UI without loading them again. The browser handles
  // new tabs and downloads.
  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (!match(this.routes, link.pathname)) return; // not a page: a download or a report
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

export const router = new Router();

// match returns the route of a path, and its parameters.
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
        return false; // not a valid path
      }
      return part !== "";
    });
    if (fits) return { route, params };
  }
  return undefined;
}
