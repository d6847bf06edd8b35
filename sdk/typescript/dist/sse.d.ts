/** One server-sent event. */
export interface ServerEvent {
    /** Absent where it has none of its own. */
    id?: string;
    name: string;
    /** As JSON. */
    data: unknown;
}
/** The events of lines, as the WHATWG's HTML standard has them. */
export declare function eventsOf(lines: AsyncIterable<string>): AsyncGenerator<ServerEvent, void, undefined>;
