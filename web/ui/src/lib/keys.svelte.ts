import { untrack } from "svelte";

// Keys, and what they do now. A view says which it knows while it is there; of
// two that know the same key the one that came last has it.
export interface Binding {
  key: string; // "j", "?", "Escape", or two in a row: "g j"
  says: string; // for the list of keys
  run: () => void;
  group?: string;
}

class Keys {
  bindings = $state.raw<Binding[]>([]);
  #first = ""; // the first of two
  #forget = 0;

  constructor() {
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  // bind adds keys and returns what takes them away: use it in an effect.
  bind(...added: Binding[]): () => void {
    // Who binds in an effect must not run again because somebody else binds.
    this.bindings = [...untrack(() => this.bindings), ...added];
    return () => {
      this.bindings = untrack(() => this.bindings).filter((b) => !added.includes(b));
    };
  }

  #press(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    // What is being typed is text. Dialogs handle their own keys.
    if (typing(event.target) && event.key !== "Escape") return;
    if (document.querySelector("dialog:modal")) return;

    const pressed = this.#first ? `${this.#first} ${event.key}` : event.key;
    this.#first = "";
    clearTimeout(this.#forget);
    const found = this.bindings.findLast((b) => b.key === pressed);
    if (found) {
      event.preventDefault();
      found.run();
      return;
    }
    if (this.bindings.some((b) => b.key.startsWith(`${pressed} `))) {
      this.#first = pressed;
      this.#forget = window.setTimeout(() => (this.#first = ""), 1500);
    }
  }
}

function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches("input:not([type=checkbox],[type=radio]), textarea, select") || target.closest(".xterm") !== null;
}

export const keys = new Keys();
