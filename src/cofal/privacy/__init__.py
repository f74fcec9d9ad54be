"""What protects a client's data when something about it must leave."""
