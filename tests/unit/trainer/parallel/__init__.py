"""Tests of what several ranks of a site share."""
