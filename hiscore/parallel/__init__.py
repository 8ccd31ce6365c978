"""One model over several devices: its ranks, processes that compute in step, and what they exchange."""
