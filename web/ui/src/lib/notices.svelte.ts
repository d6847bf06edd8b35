// System notifications of approval requests while the page is hidden.
class Notices {
  #state = $state(typeof Notification === "undefined" ? "denied" : Notification.permission);
  can = $derived(this.#state === "default"); // the user has not decided yet

  async ask(): Promise<void> {
    this.#state = await Notification.requestPermission();
  }

  // say shows a notification and calls go when the user clicks it.
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
