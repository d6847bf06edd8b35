// A terminal in a jail over a WebSocket: binary frames are input and output, text frames are
// events. The command survives a broken connection, and the next connection attaches to it.
import { place, type Schema } from "../../../api/client";

export type TerminalState = "connecting" | "open" | "reconnecting" | "ended";

type TerminalEvent = Schema["TerminalEvent"];

interface Handlers {
  data: (bytes: Uint8Array | string) => void;
  state: (state: TerminalState, how?: string) => void;
}

const shortest = 500;
const longest = 10_000;

export class TerminalSession {
  #socket?: WebSocket;
  #exec = "";
  #wait = shortest;
  #timer = 0;
  #closed = false;
  #size = { cols: 80, rows: 24 };

  constructor(
    readonly jail: string,
    readonly on: Handlers,
  ) {}

  open(size: { cols: number; rows: number }): void {
    this.#size = size;
    const query = this.#exec ? { exec: this.#exec } : size;
    const address = new URL(place("/jails/{id}/terminal", { id: this.jail }, query), location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this.#take(data);
    socket.onclose = ({ code, reason }) => this.#left(code, reason);
    this.#socket = socket;
  }

  write(text: string): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(new TextEncoder().encode(text));
  }

  resize(size: { cols: number; rows: number }): void {
    this.#size = size;
    this.#control({ resize: size });
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#control({ signal: "HUP" }); // no connection will attach to it again
    this.#socket?.close();
  }

  #control(control: Schema["TerminalControl"]): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(control));
  }

  #take(data: string | ArrayBuffer): void {
    if (typeof data !== "string") {
      this.on.data(new Uint8Array(data));
      return;
    }
    const event = JSON.parse(data) as TerminalEvent;
    if (event.exec) {
      if (this.#exec) this.#control({ resize: this.#size });
      this.#exec = event.exec.id;
      this.#wait = shortest;
      this.on.state("open");
    }
    if (event.lost) this.on.data(`\r\n… ${event.lost} bytes lost …\r\n`);
    if (event.error) this.#end(`The terminal failed: ${event.error.detail ?? event.error.title}`);
    if (event.exit) this.#end(event.exit.signal ? `The shell was killed by SIG${event.exit.signal}` : `The shell exited with ${event.exit.exit_code ?? 0}`);
  }

  #end(how: string): void {
    this.#closed = true;
    this.on.state("ended", how);
  }

  #left(code: number, reason: string): void {
    if (this.#closed) return;
    if (code >= 4000 || !this.#exec) {
      this.#end(reason ? `The terminal failed: ${reason}` : "Cannot open a terminal: check that the jail is running");
      return;
    }
    this.on.state("reconnecting");
    this.#timer = window.setTimeout(() => this.open(this.#size), this.#wait);
    this.#wait = Math.min(this.#wait * 2, longest);
  }
}
