package control

import "time"

// HurryBack shortens the backoff after a park by another client.
func HurryBack() { firstBackoff = time.Millisecond }

// Hurry shortens the silence limits of c. It is called before the first operation.
func (c *Client) Hurry(d time.Duration) { c.answerTimeout, c.parkGrace = d, d }
