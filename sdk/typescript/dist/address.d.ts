/** Where the daemon is, as node:http has it. */
export type Address = {
    socketPath: string;
} | {
    protocol: "http:" | "https:";
    host: string;
    port: number;
};
/**
 * The place that an address names, or else $GLASSHOUSE_ADDR, or else the socket in the
 * data directory where there is one, or else the default port.
 */
export declare function find(given?: string): Address;
