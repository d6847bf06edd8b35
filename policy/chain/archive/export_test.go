package archive

// SetFull sets the number of entries of a full part.
func (c *Copier) SetFull(n int64) { c.full = n }
