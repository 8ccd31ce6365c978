"""Choice of the sequences that run in a step: queues, preemption, spilling and shares of prefill."""
