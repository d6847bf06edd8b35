import { Stream } from "./stream.js";
import { part } from "./transport.js";
/** The files of one jail, by paths that begin at its root. */
export class Files {
    api;
    jail;
    constructor(api, jail) {
        this.api = api;
        this.jail = jail;
    }
    /** What is in a file, or in a part of it. */
    async read(path, { offset, size } = {}) {
        return (await this.api.getJailsByIdFilesBytes(this.jail, { path, offset, bytes: size })).bytes();
    }
    async readText(path) {
        return (await this.open(path)).text();
    }
    /** A file to be gone through piece by piece, whatever its size. */
    open(path) {
        return this.api.getJailsByIdFilesBytes(this.jail, { path });
    }
    /** Writes a file: a string, bytes, or pieces of it one after the other. */
    write(path, data, o = {}) {
        return this.api.putJailsByIdFiles(this.jail, data, { path, ...o });
    }
    /** What is in a directory, by name. */
    async *list(path = "/") {
        let after;
        do {
            const page = (await this.api.getJailsByIdFiles(this.jail, { path, list: true, after }));
            yield* page.items;
            after = page.next;
        } while (after);
    }
    async stat(path) {
        return (await this.api.getJailsByIdFiles(this.jail, { path, stat: true }));
    }
    mkdir(path, { mode, parents } = {}) {
        return this.api.putJailsByIdFiles(this.jail, "", { path, mkdir: true, mode, parents });
    }
    move(from, to) {
        return this.api.postJailsByIdFilesMove(this.jail, { from, to });
    }
    remove(path, { recursive } = {}) {
        return this.api.deleteJailsByIdFiles(this.jail, { path, recursive });
    }
    /** A directory as a tar archive, to be read or gone through. */
    getTar(path) {
        return this.api.open({ method: "GET", path: `/jails/${part(this.jail)}/files`, query: { path, tar: true }, accept: "application/x-tar" });
    }
    /** Unpacks a tar archive into a directory. */
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
     * What changes under a path from now on. A connection that breaks is an error: what
     * happened meanwhile nobody knows.
     */
    watch(path, { recursive } = {}) {
        return new Stream({
            resumes: false,
            connect: ({ signal }) => this.api.getJailsByIdFilesWatch(this.jail, { path, recursive }, { signal }),
            take: (event) => (event.name === "change" ? { item: event.data } : "nothing"),
        });
    }
}
