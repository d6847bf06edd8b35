/** One server-sent event. */
export interface ServerEvent {
    /** Absent if the event has none. */
    id?: string;
    name: string;
    /** Decoded from JSON. */
    data: unknown;
}
/** Parses lines into server-sent events, as specified in the WHATWG HTML standard. */
export declare function eventsOf(lines: AsyncIterable<string>): AsyncGenerator<ServerEvent, void, undefined>;
