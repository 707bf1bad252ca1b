"""What others exported, checked against a run of ours."""
