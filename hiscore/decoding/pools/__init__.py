"""Pages of keys and values on the host and on the device, and the prefix cache that shares them."""
