"""Attacks on what leaves a client, so that its protection is a number: matching, membership, reconstruction."""
