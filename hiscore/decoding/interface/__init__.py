"""What the engine and the device side of decode agree on: launches, their results, sizes of the pools."""
