"""A worker's end of the local socket: blocking messages, and the shared buffers that come with them."""
