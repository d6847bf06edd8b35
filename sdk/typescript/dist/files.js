import { Stream } from "./stream.js";
import { part } from "./transport.js";
/** The files of a jail. Paths are relative to its root directory. */
export class Files {
    api;
    jail;
    constructor(api, jail) {
        this.api = api;
        this.jail = jail;
    }
    /** Returns the content of a file, or of a part of it. */
    async read(path, { offset, size } = {}) {
        return (await this.api.getFileBytes(this.jail, { path, offset, bytes: size })).bytes();
    }
    async readText(path) {
        return (await this.open(path)).text();
    }
    /** Opens a file of any size to read it piece by piece. */
    open(path) {
        return this.api.getFileBytes(this.jail, { path });
    }
    /** Writes a file from a string, bytes, or an iterable of pieces. */
    write(path, data, o = {}) {
        return this.api.putFile(this.jail, data, { path, ...o });
    }
    /** Lists a directory, sorted by name. */
    async *list(path = "/") {
        let after;
        do {
            const page = (await this.api.getFile(this.jail, { path, list: true, after }));
            yield* page.items;
            after = page.next;
        } while (after);
    }
    async stat(path) {
        return (await this.api.getFile(this.jail, { path, stat: true }));
    }
    mkdir(path, { mode, parents } = {}) {
        return this.api.putFile(this.jail, "", { path, mkdir: true, mode, parents });
    }
    move(from, to) {
        return this.api.moveFile(this.jail, { from, to });
    }
    remove(path, { recursive } = {}) {
        return this.api.deleteFile(this.jail, { path, recursive });
    }
    /** Returns a directory as a tar archive, to read at once or piece by piece. */
    getTar(path) {
        return this.api.open({ method: "GET", path: `/jails/${part(this.jail)}/files`, query: { path, tar: true }, accept: "application/x-tar" });
    }
    /** Extracts a tar archive into a directory. */
    async putTar(path, archive) {
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
    watch(path, { recursive } = {}) {
        return new Stream({
            resumes: false,
            connect: ({ signal }) => this.api.watchFiles(this.jail, { path, recursive }, { signal }),
            take: (event) => (event.name === "change" ? { item: event.data } : "nothing"),
        });
    }
}
