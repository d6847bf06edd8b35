package registry

// BytesRead returns how many bytes of files were read to register capabilities.
func (r *Registry) BytesRead() int64 { return r.sums.read.Load() }
