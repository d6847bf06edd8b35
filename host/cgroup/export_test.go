package cgroup

// Nudged makes h call f after each move. It must be called before Begin.
func (h *FastMoves) Nudged(f func(error)) { h.nudged = f }

// Running reports whether moves are being made.
func (h *FastMoves) Running() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}

// Dirs returns the directories of c in all hierarchies.
func Dirs(c *Cgroup) []string { return c.dirs }
