"""The demo: several real sites on one machine, one of them killed in the middle of an exchange (`make demo`)."""
