// Changes collects what the feed reports while a list is read. The response may be older than
// these changes, so they are applied to it.
export class Changes<T> {
  #reads = new Set<T[]>();

  add(change: T): void {
    for (const changes of this.#reads) changes.push(change);
  }

  // during reads a list, and calls apply with it and the changes since the start of the read.
  async during<L>(read: Promise<L>, apply: (list: L, changes: T[]) => void): Promise<void> {
    const changes: T[] = [];
    this.#reads.add(changes);
    try {
      apply(await read, changes);
    } finally {
      this.#reads.delete(changes);
    }
  }
}
