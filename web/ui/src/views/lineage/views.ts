// The tabs of the pages about snapshots.
export const views = [
  { id: "/snapshots", label: "List" },
  { id: "/lineage", label: "Lineage" },
];
