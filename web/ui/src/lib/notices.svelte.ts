// Notices of the system, when something asks for a person and nobody looks.
class Notices {
  #state = $state(typeof Notification === "undefined" ? "denied" : Notification.permission);
  can = $derived(this.#state === "default"); // nobody has said yet

  async ask(): Promise<void> {
    this.#state = await Notification.requestPermission();
  }

  // say shows one, and goes to a place when somebody presses it.
  say(id: string, title: string, text: string, go: () => void): void {
    if (this.#state !== "granted" || !document.hidden) return;
    const notice = new Notification(title, { body: text, tag: id });
    notice.onclick = () => {
      window.focus();
      notice.close();
      go();
    };
  }
}

export const notices = new Notices();
