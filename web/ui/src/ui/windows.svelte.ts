// Windows caches the visible parts of a long list that the daemon stores.
export interface Piece<T> {
  items: T[];
  total: number;
}

const page = 128;
const most = 48; // number of cached pages; it bounds the memory use

// A Windows loads pages of a list on demand and evicts the least recently used ones.
export class Windows<T> {
  total = $state(0);
  known = $state(false);
  error = $state.raw<unknown>();
  #pages = new Map<number, T[]>(); // in order of their last use
  #asked = new Map<number, AbortController>();
  #version = $state(0); // of #pages

  constructor(readonly read: (offset: number, limit: number, signal: AbortSignal) => Promise<Piece<T>>) {}

  // row returns row i, or undefined while it is loading.
  row(i: number): T | undefined {
    this.#version;
    return this.#pages.get(Math.floor(i / page))?.[i % page];
  }

  // want loads the rows from `from` to `to` and one page on each side, so that scrolling
  // finds loaded rows. It aborts requests for other pages.
  want(from: number, to: number): void {
    const first = Math.floor(Math.max(0, from) / page);
    const last = Math.floor(Math.max(0, to - 1) / page);
    for (const [n, asked] of this.#asked) {
      if (n < first - 1 || n > last + 1) asked.abort();
    }
    for (let n = first; n <= last; n++) this.#need(n);
    if (first > 0) this.#need(first - 1);
    if ((last + 1) * page < this.total) this.#need(last + 1);
  }

  #need(n: number): void {
    const have = this.#pages.get(n);
    if (have && (have.length === page || n * page + have.length >= this.total)) {
      this.#pages.delete(n);
      this.#pages.set(n, have);
    } else {
      void this.#fetch(n);
    }
  }

  // renew loads the last page: the current length of the list and new rows at its end.
  renew(): Promise<void> {
    return this.#fetch(Math.floor(this.total / page));
  }

  stop(): void {
    for (const asked of this.#asked.values()) asked.abort();
  }

  async #fetch(n: number): Promise<void> {
    if (this.#asked.has(n)) return;
    const over = new AbortController();
    this.#asked.set(n, over);
    try {
      const { items, total } = await this.read(n * page, page, over.signal);
      // Entries were removed from the front of a list that became shorter: all rows moved.
      if (total < this.total) this.#pages.clear();
      this.#pages.delete(n);
      this.#pages.set(n, items);
      for (const old of this.#pages.keys()) {
        if (this.#pages.size <= most) break;
        this.#pages.delete(old);
      }
      this.total = total;
      this.known = true;
      this.error = undefined;
      this.#version++;
    } catch (thrown) {
      if (!over.signal.aborted) this.error = thrown;
    } finally {
      this.#asked.delete(n);
    }
  }
}
