"""Bytes that leave a process: frames, peer messages, log entries, signed records, messages to local workers. Pure."""
