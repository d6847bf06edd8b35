// A terminal in a jail, over a WebSocket: binary frames are bytes, text frames
// say what happens to it. When the connection breaks the command goes on, and
// the next one comes back to it.
import { place, type Schema } from "../../../api/client";

export type TerminalState = "connecting" | "open" | "reconnecting" | "ended";

type Told = Schema["TerminalEvent"];

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
    this.#control({ signal: "HUP" }); // nobody will come back to it
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
    const told = JSON.parse(data) as Told;
    if (told.exec) {
      if (this.#exec) this.#control({ resize: this.#size });
      this.#exec = told.exec.id;
      this.#wait = shortest;
      this.on.state("open");
    }
    if (told.lost) this.on.data(`\r\n… ${told.lost} bytes are lost …\r\n`);
    if (told.error) this.#end(told.error.detail ?? told.error.title);
    if (told.exit) this.#end(told.exit.signal ? `ended by SIG${told.exit.signal}` : `exited with ${told.exit.exit_code ?? 0}`);
  }

  #end(how: string): void {
    this.#closed = true;
    this.on.state("ended", how);
  }

  #left(code: number, reason: string): void {
    if (this.#closed) return;
    if (code >= 4000 || !this.#exec) {
      this.#end(reason || "no terminal can be had: is the jail running?");
      return;
    }
    this.on.state("reconnecting");
    this.#timer = window.setTimeout(() => this.open(this.#size), this.#wait);
    this.#wait = Math.min(this.#wait * 2, longest);
  }
}
