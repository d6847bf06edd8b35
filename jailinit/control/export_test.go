package control

import "time"

// HurryBack shortens how long a client stays away from an init that was parked
// by somebody else.
func HurryBack() { awayAtFirst = time.Millisecond }

// Hurry shortens how long the init of c may say nothing. It is called before the first operation.
func (c *Client) Hurry(d time.Duration) { c.answerWithin, c.parkWithin = d, d }
