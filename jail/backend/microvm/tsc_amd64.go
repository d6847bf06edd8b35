package microvm

// readTSC returns the time stamp counter of the processor.
func readTSC() uint64
