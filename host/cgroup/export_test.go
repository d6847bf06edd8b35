package cgroup

// Nudged has f told of each move. It must be called before Begin.
func (h *FastMoves) Nudged(f func(error)) { h.nudged = f }

// Running tells whether moves are being made.
func (h *FastMoves) Running() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}
