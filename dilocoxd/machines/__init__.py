"""Decision machines: pure, no I/O and no clock. Every folder holds one machine; drivers of daemon/ run them."""
