"""The device side of decode: device queues, offload schedule, step runner, CUDA graphs."""
