"""As much of PIL as a kernel sees of it, where the real one is not installed."""
