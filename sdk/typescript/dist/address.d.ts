/** The daemon's address as options of node:http. */
export type Address = {
    socketPath: string;
} | {
    protocol: "http:" | "https:";
    host: string;
    port: number;
};
/**
 * Parses an address. Without one it uses $GLASSHOUSE_ADDR, the socket in the data directory
 * if it exists, or the default port.
 */
export declare function find(given?: string): Address;
