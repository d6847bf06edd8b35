// Fuzzy matching of a query against a text: all characters of the query in order.

// Identifiers are random, so they match only as a whole or in part, and not by scattered characters.
const identifiers = /\b[a-z]-[a-z0-9]{12}\b/g;

// score returns how well a text matches a query, higher is better, or -1 if it does not match.
// Characters at the begin of words and consecutive characters count more.
export function score(query: string, text: string): number {
  const wanted = query.toLowerCase().replaceAll(/\s+/g, "");
  if (wanted === "") return 0;
  const at = text.toLowerCase().indexOf(query.toLowerCase().trim());
  if (at >= 0) {
    return 1000 - Math.min(at, 100) - Math.min(text.length, 200) / 4 + (startsWord(text, at) ? 200 : 0);
  }
  const lower = text.toLowerCase().replaceAll(identifiers, (id) => " ".repeat(id.length));
  // best[i] is the highest score of the characters so far with the last one at position i.
  let best = new Map<number, number>([[-2, 0]]);
  for (const c of wanted) {
    const next = new Map<number, number>();
    for (let at = lower.indexOf(c); at >= 0; at = lower.indexOf(c, at + 1)) {
      for (const [last, sum] of best) {
        if (last >= at) continue;
        const points = sum + (at === last + 1 ? 8 : startsWord(text, at) ? 6 : 1);
        if (points > (next.get(at) ?? -1)) next.set(at, points);
      }
    }
    best = next;
  }
  return best.size === 0 ? -1 : Math.max(...best.values()) - text.length / 20;
}

function startsWord(text: string, at: number): boolean {
  return at === 0 || /[\s/_.:-]/.test(text[at - 1] ?? "");
}

// best returns the items that match, best first. Items with the same score keep their order.
export function best<T>(query: string, items: T[], text: (item: T) => string, most: number): T[] {
  if (query.trim() === "") return items.slice(0, most);
  return items
    .map((item) => ({ item, points: score(query, text(item)) }))
    .filter((m) => m.points > 0)
    .sort((a, b) => b.points - a.points)
    .slice(0, most)
    .map((m) => m.item);
}
