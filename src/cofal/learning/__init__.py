"""Encoders, contrastive views and loss, classifier heads and local training loops: arrays in, arrays and models out."""
