"""The interface between the engine and the device side of decode: launches, their results, sizes of the pools."""
