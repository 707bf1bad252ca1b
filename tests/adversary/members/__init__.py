"""Attacks of those who take part: what they vote for, what they contribute, and how many they are."""
