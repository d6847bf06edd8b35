import { keys, type Binding } from "./keys.svelte";

// A Cursor is the row of a list that is selected with the keyboard.
export class Cursor {
  at = $state(-1);

  constructor(
    readonly rows: () => number,
    readonly open: (row: number) => void = () => {},
  ) {}

  // bind binds j, k and Enter to moving and opening, and / to the search field if there is
  // one. Use it in an effect.
  bind(group: string, more: { search?: () => HTMLElement | undefined; others?: Binding[] } = {}): () => void {
    const own: Binding[] = [
      { key: "j", says: "Next row", group, run: () => this.#move(1) },
      { key: "k", says: "Previous row", group, run: () => this.#move(-1) },
      { key: "Enter", says: "Open the row", group, run: () => this.at >= 0 && this.at < this.rows() && this.open(this.at) },
    ];
    if (more.search) own.push({ key: "/", says: "Search", group, run: () => more.search?.()?.focus() });
    return keys.bind(...own, ...(more.others ?? []));
  }

  #move(by: number): void {
    if (this.rows() > 0) this.at = Math.max(0, Math.min(this.rows() - 1, this.at + by));
  }

  // row is an attachment for the element of a row. It marks the selected row and scrolls it
  // into view.
  row = (index: number) => (node: HTMLElement) => {
    $effect(() => {
      const on = this.at === index;
      node.classList.toggle("current", on);
      if (on) {
        node.setAttribute("aria-current", "true");
        node.scrollIntoView({ block: "nearest" });
      } else node.removeAttribute("aria-current");
    });
  };
}
