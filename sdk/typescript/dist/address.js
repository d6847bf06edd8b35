import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { Invalid } from "./errors.js";
const DEFAULT = "http://127.0.0.1:8082";
/**
 * Parses an address. Without one it uses $GLASSHOUSE_ADDR, the socket in the data directory
 * if it exists, or the default port.
 */
export function find(given) {
    let address = given || process.env["GLASSHOUSE_ADDR"] || socket() || DEFAULT;
    if (address.startsWith("unix://")) {
        address = address.slice("unix://".length);
        if (!address.startsWith("/"))
            throw new Invalid(`unix://${address} is not an absolute path after unix://`, { field: "address" });
    }
    if (address.startsWith("/"))
        return { socketPath: address };
    const wrong = () => new Invalid(`invalid address "${address}": want unix:///path, http://host:port or https://host:port`, { field: "address" });
    let url;
    try {
        url = new URL(address.includes("://") ? address : "http://" + address);
    }
    catch {
        throw wrong();
    }
    if ((url.protocol !== "http:" && url.protocol !== "https:") || url.pathname.replaceAll("/", "") !== "")
        throw wrong();
    const port = Number(url.port) || (url.protocol === "https:" ? 443 : 80);
    return { protocol: url.protocol, host: url.hostname.replace(/^\[|\]$/g, ""), port };
}
function socket() {
    const root = process.getuid?.() === 0;
    const data = process.env["GLASSHOUSE_DATA"] || (root ? "/var/lib/glasshouse" : join(homedir(), ".local/share/glasshouse"));
    const path = join(data, "glasshouse.sock");
    return existsSync(path) ? path : undefined;
}
