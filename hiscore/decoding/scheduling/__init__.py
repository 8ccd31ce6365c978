"""Which sequences run in a step: queues, preemption, spilling and shares of prefill."""
