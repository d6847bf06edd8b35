import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { type Answer, type Content, part } from "./transport.js";
import type * as wire from "./wire.js";

export interface WriteOptions {
  /** Permission bits, octal. */
  mode?: string;
  append?: boolean;
  /** Create missing parent directories. */
  parents?: boolean;
  uid?: number;
  gid?: number;
}

/** The files of a jail. Paths are relative to its root directory. */
export class Files {
  constructor(
    private readonly api: Operations,
    private readonly jail: string,
  ) {}

  /** Returns the content of a file, or of a part of it. */
  async read(path: string, { offset, size }: { offset?: number; size?: number } = {}): Promise<Uint8Array> {
    return (await this.api.getFileBytes(this.jail, { path, offset, bytes: size })).bytes();
  }

  async readText(path: string): Promise<string> {
    return (await this.open(path)).text();
  }

  /** Opens a file of any size to read it piece by piece. */
  open(path: string): Promise<Answer> {
    return this.api.getFileBytes(this.jail, { path });
  }

  /** Writes a file from a string, bytes, or an iterable of pieces. */
  write(path: string, data: Content, o: WriteOptions = {}): Promise<wire.File> {
    return this.api.putFile(this.jail, data, { path, ...o });
  }

  /** Lists a directory, sorted by name. */
  async *list(path = "/"): AsyncGenerator<wire.File, void, undefined> {
    let after: string | undefined;
    do {
      const page = (await this.api.getFile(this.jail, { path, list: true, after })) as wire.FilePage;
      yield* page.items;
      after = page.next;
    } while (after);
  }

  async stat(path: string): Promise<wire.File> {
    return (await this.api.getFile(this.jail, { path, stat: true })) as wire.File;
  }

  mkdir(path: string, { mode, parents }: { mode?: string; parents?: boolean } = {}): Promise<wire.File> {
    return this.api.putFile(this.jail, "", { path, mkdir: true, mode, parents });
  }

  move(from: string, to: string): Promise<void> {
    return this.api.moveFile(this.jail, { from, to });
  }

  remove(path: string, { recursive }: { recursive?: boolean } = {}): Promise<void> {
    return this.api.deleteFile(this.jail, { path, recursive });
  }

  /** Returns a directory as a tar archive, to read at once or piece by piece. */
  getTar(path: string): Promise<Answer> {
    return this.api.open({ method: "GET", path: `/jails/${part(this.jail)}/files`, query: { path, tar: true }, accept: "application/x-tar" });
  }

  /** Extracts a tar archive into a directory. */
  async putTar(path: string, archive: Content): Promise<void> {
    const answer = await this.api.open({
      method: "PUT",
      path: `/jails/${part(this.jail)}/files`,
      query: { path, tar: true },
      content: archive,
      contentType: "application/x-tar",
    });
    await answer.bytes();
  }

  /**
   * Streams later changes below a path. If the connection breaks, it throws an error:
   * changes may have been missed.
   */
  watch(path: string, { recursive }: { recursive?: boolean } = {}): Stream<wire.FileEvent> {
    return new Stream<wire.FileEvent>({
      resumes: false,
      connect: ({ signal }) => this.api.watchFiles(this.jail, { path, recursive }, { signal }),
      take: (event) => (event.name === "change" ? { item: event.data as wire.FileEvent } : "nothing"),
    });
  }
}
